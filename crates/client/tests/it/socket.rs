//! One connection: answers find their callers, the rest comes in order, the end is said.

use switchboard_client::{ClientError, LOST, OpError, SocketEvent, SocketOptions};
use switchboard_model::secret_text::SecretText;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{NoticeFrame, ReplyError};
use switchboard_model::wire::op::{ClientOp, Join, Since};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::replica::{FakeReplica, event, patient, room};

fn options() -> SocketOptions {
    SocketOptions::ticket(SecretText::from_presented("sbt_x".into()))
}

#[tokio::test]
async fn answers_find_their_callers_and_the_rest_comes_in_order() {
    let replica = FakeReplica::start().await;
    let client = replica.client();
    let (socket, mut server) = tokio::join!(client.connect(options()), replica.accept());
    let mut socket = socket.unwrap();
    assert_eq!(socket.hello().user_id.as_str(), "ann");

    let lobby = room("lobby");
    let (first, second) = (socket.handle(), socket.handle());
    let script = async {
        let (a, b) = (server.op().await, server.op().await);
        server.event(&lobby, 1).await;
        server.reply(b.id, &serde_json::json!({})).await;
        server.refuse(a.id, ReplyError::new(ErrorCode::NotJoined, "not here")).await;
        server
    };
    let (refused, done, mut server) = tokio::join!(first.leave(&lobby), second.ping(), script);
    assert_eq!(refused.unwrap_err().code(), Some(ErrorCode::NotJoined));
    done.unwrap();
    assert_eq!(socket.next().await, Some(SocketEvent::Event(event(&lobby, 1))));

    server.notice(&NoticeFrame::Ping {}).await;
    assert_eq!(server.op().await.op, ClientOp::Ping, "pings are answered without being shown");
    let id = socket
        .send(ClientOp::Join(Join { room: lobby.clone(), since: Since::default(), presence: false }))
        .await
        .unwrap();
    assert_eq!(server.joined(&lobby, 1, true, 0).await, Since::default());
    server.event(&lobby, 2).await;
    let Some(SocketEvent::Reply(reply)) = socket.next().await else { panic!("the answer was due") };
    assert_eq!(reply.re, id);
    assert_eq!(socket.next().await, Some(SocketEvent::Event(event(&lobby, 2))));

    let (closed, ()) = tokio::join!(socket.next(), server.close(4200));
    assert_eq!(closed, Some(SocketEvent::Closed { code: 4200, reason: "as told".into() }));
    assert_eq!(socket.next().await, None);
    assert!(matches!(first.ping().await, Err(OpError::Closed)));
    patient(client.closed()).await;
}

#[tokio::test]
async fn a_connection_that_breaks_ends_the_operations_on_it() {
    let replica = FakeReplica::start().await;
    let client = replica.client();
    let (socket, mut server) = tokio::join!(client.connect(options()), replica.accept());
    let mut socket = socket.unwrap();
    let handle = socket.handle();
    let script = async move {
        server.op().await;
        drop(server);
    };
    let (answer, ()) = tokio::join!(handle.ping(), script);
    assert!(matches!(answer, Err(OpError::Closed)));
    assert!(matches!(socket.next().await, Some(SocketEvent::Closed { code: LOST, .. })));
}

#[tokio::test]
async fn dropping_the_socket_closes_the_connection_and_ends_its_tasks() {
    let replica = FakeReplica::start().await;
    let client = replica.client();
    let (socket, server) = tokio::join!(client.connect(options()), replica.accept());
    drop(socket.unwrap());
    // Ends because the client says goodbye.
    let (_, ()) = tokio::join!(server.close(1000), patient(client.closed()));
}

#[tokio::test]
async fn a_refused_upgrade_tells_the_problem() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options_of = switchboard_client::ClientOptions {
        base_url: format!("http://{}", listener.local_addr().unwrap()),
        credential: None,
    };
    let client = switchboard_client::Client::new(options_of).unwrap();
    let script = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 4096];
        let _ = stream.read(&mut head).await.unwrap();
        let body =
            r#"{"type":"about:blank","title":"t","status":401,"code":"unauthorized","detail":"d","request_id":"r"}"#;
        let answer = format!("HTTP/1.1 401 Unauthorized\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream
    };
    let (refused, _stream) = tokio::join!(client.connect(options()), script);
    let error = refused.unwrap_err();
    assert!(matches!(&error, ClientError::Problem(_)), "{error:?}");
    assert_eq!((error.code(), error.status()), (Some(ErrorCode::Unauthorized), Some(401)));
}
