//! A socket over several connections: it takes turns, asks for what it has not seen, and says what is missing.

use std::sync::Arc;

use switchboard_client::{Client, LOST, ResumeEvent, ResumeOptions, ResumingSocket, StopCause};
use switchboard_model::identity::{EventName, RoomName};
use switchboard_model::json_text::JsonText;
use switchboard_model::room::Position;
use switchboard_model::secret_text::SecretText;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{Published, ReplyError};
use switchboard_model::wire::op::{ClientOp, Publish, Since};

use crate::replica::{FakeReplica, FakeSocket, epoch, patient, room};

fn open(replicas: &[&FakeReplica]) -> ResumingSocket {
    let base_urls = replicas.iter().map(|replica| replica.url()).collect();
    let tickets = |_: Client| async { Ok(SecretText::from_presented("sbt_x".into())) };
    replicas[0].client().resume(ResumeOptions { base_urls, tickets: Arc::new(tickets) }).unwrap()
}

fn after(offset: i64) -> Since {
    Since::Position(Position { epoch: epoch(), offset })
}

async fn next(socket: &mut ResumingSocket) -> ResumeEvent {
    patient(socket.next()).await.expect("an arrival")
}

async fn offset(socket: &mut ResumingSocket) -> i64 {
    match next(socket).await {
        ResumeEvent::Event(event) => event.offset.unwrap(),
        other => panic!("an event was due: {other:?}"),
    }
}

async fn connected(socket: &mut ResumingSocket) {
    let event = next(socket).await;
    assert!(matches!(event, ResumeEvent::Connected { .. }), "{event:?}");
}

async fn disconnected(socket: &mut ResumingSocket, code: u16) {
    let event = next(socket).await;
    assert!(matches!(event, ResumeEvent::Disconnected { code: said, .. } if said == code), "{event:?}");
}

/// Accepts the first connection and lets the caller join `lobby` at offset 5.
async fn joined_lobby(replica: &FakeReplica, socket: &mut ResumingSocket, lobby: &RoomName) -> FakeSocket {
    let mut server = replica.accept().await;
    assert_eq!(server.joined(&room("user:ann"), 2, true, 0).await, Since::default());
    connected(socket).await;
    let (joined, since) = tokio::join!(socket.join(lobby, Since::default()), server.joined(lobby, 5, true, 0));
    assert_eq!((joined.unwrap().offset, since), (5, Since::default()));
    server
}

#[tokio::test]
async fn every_room_goes_on_where_it_was_on_the_next_replica() {
    let (a, b) = (FakeReplica::start().await, FakeReplica::start().await);
    let mut socket = open(&[&a, &b]);
    let lobby = room("lobby");
    let mut server = joined_lobby(&a, &mut socket, &lobby).await;
    server.event(&lobby, 6).await;
    assert_eq!(offset(&mut socket).await, 6);
    server.close(4200).await;
    disconnected(&mut socket, 4200).await;

    let mut server = b.accept().await;
    assert_eq!(server.joined(&lobby, 6, true, 2).await, after(6));
    assert_eq!(server.joined(&room("user:ann"), 2, true, 0).await, after(2), "resumes without any event");
    for offset in [6, 7, 7, 8] {
        server.event(&lobby, offset).await;
    }
    connected(&mut socket).await;
    assert_eq!([offset(&mut socket).await, offset(&mut socket).await], [7, 8]);

    drop(server);
    disconnected(&mut socket, LOST).await;
    let mut server = a.accept().await;
    assert_eq!(server.joined(&lobby, 20, false, 0).await, after(8));
    assert_eq!(server.joined(&room("user:ann"), 2, true, 0).await, after(2));
    let event = next(&mut socket).await;
    assert!(matches!(&event, ResumeEvent::Desync { room, .. } if *room == lobby), "{event:?}");
    connected(&mut socket).await;
    server.event(&lobby, 21).await;
    assert_eq!(offset(&mut socket).await, 21);
}

#[tokio::test]
async fn a_refused_join_is_told_and_the_room_not_followed() {
    let replica = FakeReplica::start().await;
    let mut socket = open(&[&replica]);
    let lobby = room("lobby");
    let mut server = joined_lobby(&replica, &mut socket, &lobby).await;
    let twice = socket.join(&lobby, Since::default()).await;
    assert_eq!(twice.unwrap_err().code(), Some(ErrorCode::AlreadyJoined));
    socket.reconnect().await.unwrap();
    disconnected(&mut socket, LOST).await;
    drop(server);

    server = replica.accept().await;
    let join = server.op().await;
    server.refuse(join.id, ReplyError::new(ErrorCode::NotFound, "gone")).await;
    server.joined(&room("user:ann"), 2, true, 0).await;
    let event = next(&mut socket).await;
    assert!(matches!(&event, ResumeEvent::Refused { room, .. } if *room == lobby), "{event:?}");
    connected(&mut socket).await;
    let script = async {
        let join = server.op().await;
        server.refuse(join.id, ReplyError::new(ErrorCode::NotFound, "gone")).await;
    };
    let (again, ()) = tokio::join!(socket.join(&lobby, Since::default()), script);
    assert_eq!(again.unwrap_err().code(), Some(ErrorCode::NotFound));
}

#[tokio::test]
async fn a_join_waits_for_the_next_connection() {
    let replica = FakeReplica::start().await;
    let mut socket = open(&[&replica]);
    let lobby = room("lobby");
    let mut server = replica.accept().await;
    server.joined(&room("user:ann"), 2, true, 0).await;
    connected(&mut socket).await;
    let script = async {
        server.op().await;
        drop(server);
        let mut server = replica.accept().await;
        assert_eq!(server.joined(&lobby, 5, true, 0).await, Since::default());
        server.joined(&room("user:ann"), 2, true, 0).await;
        server
    };
    let (joined, mut server) = tokio::join!(socket.join(&lobby, Since::default()), script);
    assert_eq!(joined.unwrap().offset, 5);
    disconnected(&mut socket, LOST).await;
    connected(&mut socket).await;

    let event: EventName = "hi".parse().unwrap();
    let publish = Publish { room: lobby.clone(), event, payload: JsonText::null(), msg_id: None, ephemeral: true };
    let answer = Published { msg_id: "m".into(), position: None, duplicate: false };
    let script = async {
        let frame = server.op().await;
        assert_eq!(frame.op, ClientOp::Publish(publish.clone()));
        server.reply(frame.id, &answer).await;
    };
    let (published, ()) = tokio::join!(socket.publish(publish.clone()), script);
    assert_eq!(published.unwrap(), answer);
}

#[tokio::test]
async fn a_close_code_that_asks_for_a_person_is_the_end() {
    let replica = FakeReplica::start().await;
    let mut socket = open(&[&replica]);
    let mut server = replica.accept().await;
    server.joined(&room("user:ann"), 2, true, 0).await;
    connected(&mut socket).await;
    server.close(4010).await;
    let event = next(&mut socket).await;
    assert!(matches!(event, ResumeEvent::Stopped(StopCause::Closed { code: 4010, .. })), "{event:?}");
    assert!(socket.next().await.is_none());
    assert!(socket.join(&room("lobby"), Since::default()).await.is_err());
}
