//! The client for browsers in a real one, on one SQLite process and on two PostgreSQL replicas.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::State;
use axum::response::Html;
use axum::routing::get;
use futures_util::future::join;
use serde_json::{Value, json};
use switchboard_client::Client;
use switchboard_model::call::{Call, CallState, WhenAbsent};
use switchboard_model::json_text::JsonText;
use switchboard_model::span::Span;
use switchboard_model::stream::{StreamEnd, StreamState};
use switchboard_model::ticket::{Grants, RoomPattern};
use switchboard_model::user::{User, UserRole};
use switchboard_model::wire::auth::{LoginRequest, Password, UserRequest};
use switchboard_model::wire::rest::{CallRequest, TicketRequest};
use switchboard_model::wire::stream::{ChunkText, StreamAppendRequest, StreamOpened, StreamRequest};
use switchboard_testkit::proxy::{Ending, FaultProxy};
use switchboard_testkit::{Cluster, ClusterBuilder, wait_until};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::chromium::Browser;
use crate::fixtures::{all_events, create_room, event, on_both_databases, room};

const PASSWORD: &str = "correct horse battery staple";

on_both_databases! {
    in super::Scene::open;
    events_arrive_once_and_in_order_while_connections_are_cut,
    a_lost_position_is_told_to_the_page,
    a_stream_is_read_to_its_end_while_connections_are_cut,
    the_page_of_the_guide_shows_what_happens,
    a_call_is_executed_once_and_answered_over_the_next_connection,
    the_snippet_of_the_guide_answers_calls,
}

/// An application: its page, and its server, which gives out tickets.
struct Application {
    origin: String,
    /// Known once the cluster runs, which must know the origin first.
    replicas: Replicas,
    _stop: DropGuard,
}

type Replicas = Arc<OnceLock<Vec<Client>>>;

impl Application {
    async fn start() -> Self {
        let replicas = Replicas::default();
        let router = Router::new()
            .route("/", get(async || Html("<!doctype html><title>An application</title>")))
            .route("/guide", get(async || Html(include_str!("../../../../docs/guides/browser.html"))))
            .route("/ticket", get(ticket))
            .with_state(Arc::clone(&replicas));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let serve = axum::serve(listener, router);
        TaskTracker::new().spawn(stop.clone().run_until_cancelled_owned(serve.into_future()));
        Self { origin, replicas, _stop: stop.drop_guard() }
    }
}

/// Gives a ticket for Ann, who may do everything in the lobby, from whichever replica answers.
async fn ticket(State(replicas): State<Replicas>) -> String {
    let everything = || vec![RoomPattern::new("lobby")];
    let grants = Grants { join: everything(), publish: everything() };
    let request = TicketRequest { user_id: Some("ann".parse().unwrap()), origin: None, grants };
    for replica in replicas.get().unwrap() {
        if let Ok(ticket) = replica.mint_ticket(&request).await {
            return ticket.expose().to_owned();
        }
    }
    String::new()
}

/// A page of an application in a browser, and ways to the replicas that can be cut.
struct Scene {
    cluster: Cluster,
    application: Application,
    ways: Vec<FaultProxy>,
    browser: Browser,
}

impl Scene {
    async fn open(cluster: ClusterBuilder) -> Self {
        let application = Application::start().await;
        let browser = Browser::start().await;
        let cluster = cluster.env("SWITCHBOARD_SERVER__ALLOWED_ORIGINS", &application.origin).await;
        let clients = (0..cluster.size()).map(|index| cluster.client(index).clone()).collect();
        application.replicas.set(clients).unwrap();
        let mut ways = Vec::new();
        for url in cluster.base_urls() {
            ways.push(FaultProxy::before(&url).await);
        }
        browser.open(&application.origin).await;
        Self { cluster, application, ways, browser }
    }

    fn urls(&self) -> Vec<String> {
        self.ways.iter().map(|way| way.url().to_owned()).collect()
    }

    /// Connects a client in the page, `window.client`, with tickets of the application or with an access token.
    async fn connect(&self, token: Option<&str>) {
        let script = "
            const { Switchboard } = await import(`${input.urls[0]}/sdk/switchboard.js`);
            const ticket = input.token ? undefined : async () => (await fetch('/ticket')).text();
            window.client = new Switchboard({ url: input.urls, token: input.token ?? undefined, ticket });
            window.told = { event: [], desync: [], disconnected: [], stopped: [] };
            for (const name of Object.keys(told)) client.on(name, (notice) => told[name].push(notice));
            await client.connect();
        ";
        self.browser.run(script, json!({"urls": self.urls(), "token": token})).await;
    }

    /// Reads an expression in the page.
    async fn read(&self, expression: &str) -> Value {
        self.browser.run(&format!("return {expression};"), Value::Null).await
    }

    fn cut(&self) {
        self.ways.iter().for_each(|way| way.end_all(Ending::Close));
    }

    /// Makes a user, and returns them and an access token.
    async fn sign_in(&self, name: &str) -> (User, String) {
        let (name, password) = (name.parse().unwrap(), Password::new(PASSWORD));
        let request = UserRequest { id: None, name, password: Some(password.clone()), role: UserRole::User };
        let client = self.cluster.any();
        let user = client.create_user(&request).await.unwrap();
        let login = LoginRequest { name: request.name, password };
        (user, client.with_credential(None).login(&login).await.unwrap().access_token)
    }
}

async fn events_arrive_once_and_in_order_while_connections_are_cut(mut scene: Scene) {
    create_room(scene.cluster.any(), "lobby").await;
    scene.connect(None).await;
    // What the page publishes on its own, one after the other, whatever happens to its connections.
    let publishing = "
        window.offsets = [];
        const onEvent = ({ offset }) => offsets.push(offset);
        const joined = await client.join('lobby', { since: 'earliest', onEvent });
        window.published = [];
        (async () => {
            for (let n = 0; n < 100; n += 1) published.push(await client.publish('lobby', 'page', { n }));
        })().catch((error) => (window.failure = String(error)));
        return joined.recovered;
    ";
    assert_eq!(scene.browser.run(publishing, Value::Null).await, true);
    for n in 0..200 {
        scene.cluster.any().publish(&room("lobby"), &event("server", json!(n))).await.unwrap();
        if n % 20 == 10 {
            scene.cut();
        }
        if n == 100 {
            scene.cluster.restart(0).await;
        }
    }
    wait_until("every event in the page", async || {
        assert_eq!(scene.read("window.failure ?? null").await, Value::Null);
        let counts = scene.read("[published.length, offsets.length]").await;
        if counts == json!([100, 300]) { Ok(()) } else { Err(counts) }
    })
    .await;
    assert_eq!(scene.read("offsets").await, json!((1..=300).collect::<Vec<_>>()));
    assert_eq!(scene.read("told.desync.length + told.stopped.length").await, 0);
    assert!(scene.read("told.disconnected.length").await.as_u64().unwrap() > 0, "connections were cut");
    let stored = all_events(scene.cluster.any()).await;
    let published = scene.read("published.map(({ msg_id }) => msg_id)").await;
    for msg_id in published.as_array().unwrap() {
        assert_eq!(stored.iter().filter(|stored| *stored == msg_id.as_str().unwrap()).count(), 1, "{msg_id}");
    }
    assert_eq!(stored.len(), 300, "nothing was stored twice");
}

async fn a_lost_position_is_told_to_the_page(scene: Scene) {
    let client = scene.cluster.any();
    create_room(client, "lobby").await;
    client.publish(&room("lobby"), &event("note", json!(1))).await.unwrap();
    scene.connect(None).await;
    let script = "
        const { recovered, offset } = await client.join('lobby', { since: { epoch: 'other-1', offset: 5 } });
        return { recovered, offset, top: (await client.history('lobby')).top, userId: client.userId };
    ";
    let joined = scene.browser.run(script, Value::Null).await;
    assert_eq!(joined, json!({"recovered": false, "offset": 1, "top": 1, "userId": "ann"}));
    client.publish(&room("lobby"), &event("note", json!(2))).await.unwrap();
    wait_until("the next event", async || (scene.read("told.event.length").await == 1).then_some(())).await;
    let told = scene.read("told.desync.map(({ room, position }) => [room, position.offset])").await;
    assert_eq!(told, json!([["lobby", 1]]));
}

async fn a_stream_is_read_to_its_end_while_connections_are_cut(scene: Scene) {
    let (user, token) = scene.sign_in("ann").await;
    let client = scene.cluster.any();
    let request = StreamRequest { user_id: Some(user.id), ..StreamRequest::default() };
    let StreamOpened { stream, fence } = client.open_stream(&request).await.unwrap();
    let script = "
        const { Switchboard } = await import(`${input.urls[0]}/sdk/switchboard.js`);
        const stream = new Switchboard({ url: input.urls, token: input.token }).readStream(input.id);
        window.chunks = [];
        const read = async () => {
            for await (const { data } of stream) chunks.push(data);
            window.end = stream.end;
        };
        read().catch((error) => (window.failure = String(error)));
    ";
    scene.browser.run(script, json!({"urls": scene.urls(), "token": token, "id": stream.id})).await;
    let mut written = Vec::new();
    for first in 1..=60 {
        let chunk = format!("line {first} 🦀\n");
        written.push(chunk.clone());
        let end = (first == 60).then_some(StreamEnd { state: StreamState::Completed, reason: None });
        let append = StreamAppendRequest { fence, first, chunks: vec![ChunkText(chunk)], end };
        client.append_stream(stream.id, &append).await.unwrap();
        if first % 20 == 10 {
            let has_begun = async || (scene.read("chunks.length").await != 0).then_some(());
            wait_until("chunks in the page", has_begun).await;
            scene.cut();
        }
    }
    let end = wait_until("the end of the stream in the page", async || {
        assert_eq!(scene.read("window.failure ?? null").await, Value::Null);
        Some(scene.read("window.end ?? null").await).filter(|end| !end.is_null())
    });
    assert_eq!(end.await, json!({"state": "completed"}));
    assert_eq!(scene.read("chunks").await, json!(written));
}

async fn the_page_of_the_guide_shows_what_happens(scene: Scene) {
    let client = scene.cluster.any();
    create_room(client, "lobby").await;
    scene.sign_in("ann").await;
    scene.browser.open(&format!("{}/guide", scene.application.origin)).await;
    let script = "
        const form = document.querySelector('form');
        for (const [name, value] of Object.entries(input)) form.elements[name].value = value;
        form.requestSubmit();
    ";
    let answers = json!({"server": scene.urls()[0], "name": "ann", "password": PASSWORD});
    scene.browser.run(script, answers).await;
    let shown = "document.body.innerText";
    wait_until("the connection", async || {
        let text = scene.read(shown).await;
        if text.as_str().unwrap().contains("live as") { Ok(()) } else { Err(text) }
    })
    .await;
    client.publish(&room("lobby"), &event("note", json!("hello, page"))).await.unwrap();
    wait_until("the event in the page", async || {
        let text = scene.read(shown).await;
        if text.as_str().unwrap().contains("hello, page") { Ok(()) } else { Err(text) }
    })
    .await;
}

fn reverse(text: &str) -> CallRequest {
    CallRequest {
        event: "tool.reverse".parse().unwrap(),
        payload: JsonText::encode(text).unwrap(),
        timeout: None,
        when_absent: WhenAbsent::Wait,
        wait: None,
    }
}

fn result(call: &Call) -> Option<&str> {
    call.result.as_ref().map(JsonText::as_str)
}

async fn a_call_is_executed_once_and_answered_over_the_next_connection(scene: Scene) {
    scene.connect(None).await;
    let script = "
        window.executed = [];
        client.onCall('tool.reverse', async (text, { callId }) => {
            executed.push(callId);
            await new Promise((resolve) => (window.finish = resolve));
            return [...text].reverse().join('');
        });
        client.onCall('tool.fail', () => { throw new Error('the camera is off'); });
    ";
    scene.browser.run(script, Value::Null).await;
    let (ann, client) = ("ann".parse().unwrap(), scene.cluster.any());
    let request = reverse("héllo");
    let answering = async {
        wait_until("the call in the page", async || (scene.read("executed.length").await == 1).then_some(())).await;
        scene.cut();
        scene.read("finish()").await;
    };
    let (call, ()) = join(client.call(&ann, &request), answering).await;
    let call = call.unwrap();
    assert_eq!((call.state, result(&call)), (CallState::Done, Some("\"olléh\"")));
    assert_eq!(scene.read("executed").await, json!([call.id]), "once, whatever happened to its connection");
    let failing = CallRequest { event: "tool.fail".parse().unwrap(), ..request };
    let failed = client.call(&ann, &failing).await.unwrap();
    assert_eq!(failed.state, CallState::Failed);
    assert!(failed.error.unwrap().message.contains("the camera is off"));
}

async fn the_snippet_of_the_guide_answers_calls(scene: Scene) {
    let guide = include_str!("../../../../docs/guides/calls.md");
    let (_, snippet) = guide.split_once("```js\n").unwrap();
    let (snippet, _) = snippet.split_once("```").unwrap();
    // The test has no certificates.
    let plain = snippet.replace("`wss://", "`ws://");
    assert_ne!(plain, snippet);
    let (ann, client) = ("ann".parse().unwrap(), scene.cluster.any());
    // One call is there before the page is.
    let early = client.call(&ann, &CallRequest { wait: Some(Span::default()), ..reverse("early") }).await.unwrap();
    let host = scene.cluster.base_urls().remove(0).replace("http://", "");
    let ticket = scene.read("await (await fetch('/ticket')).text()").await;
    let script = format!("const {{ host, ticket }} = input;\n{plain}\nwindow.socket = socket;");
    scene.browser.run(&script, json!({"host": host, "ticket": ticket})).await;
    let early = client.wait_for_call(early.id, Span::from_secs(20)).await.unwrap();
    assert_eq!((early.state, result(&early)), (CallState::Done, Some("\"ylrae\"")));
    let call = client.call(&ann, &reverse("hello")).await.unwrap();
    assert_eq!((call.state, result(&call)), (CallState::Done, Some("\"olleh\"")));
    let unknown = CallRequest { event: "tool.unknown".parse().unwrap(), ..reverse("hello") };
    let failed = client.call(&ann, &unknown).await.unwrap();
    assert_eq!((failed.state, result(&failed)), (CallState::Failed, None));
}
