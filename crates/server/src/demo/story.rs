//! What the demo does, step by step, as an administrator, a user and a sender of webhooks would do it.

use std::time::Duration;

use anyhow::bail;
use switchboard_client::{Client, Socket, SocketEvent, SocketOptions, WebhookDelivery};
use switchboard_model::identity::RoomName;
use switchboard_model::ids::RunId;
use switchboard_model::json_text::JsonText;
use switchboard_model::room::{Retention, RoomKind};
use switchboard_model::secret_text::SecretText;
use switchboard_model::task::TaskSpec;
use switchboard_model::ticket::Grants;
use switchboard_model::user::{User, UserRole};
use switchboard_model::wire::auth::{LoginRequest, Password, UserRequest};
use switchboard_model::wire::frame::EventFrame;
use switchboard_model::wire::op::Since;
use switchboard_model::wire::rest::{PublishRequest, RoomRequest, TicketRequest, TriggerRequest, WebhookSecretRequest};
use tokio::time::Instant;

use crate::output::line;

/// How many scheduled ticks the demo waits for.
const TICKS: usize = 3;

/// Does everything; whatever does not arrive is an error.
pub(super) async fn tell(admin: &Client) -> anyhow::Result<()> {
    let room: RoomName = "demo".parse()?;
    let request = RoomRequest { name: room.clone(), kind: RoomKind::Public, retention: Retention::default() };
    admin.create_room(&request).await?;
    let (ann, client) = sign_in(admin).await?;
    let socket = open_socket(&client, &room).await?;
    let mut story = Story { admin, room, socket, start: Instant::now(), events: 0 };
    story.schedule().await?;
    story.trigger().await?;
    story.webhook().await?;
    story.publish(&ann).await?;
    line(format_args!("\nDone: {} events arrived over the socket.", story.events))
}

/// Makes a user and signs them in with the password, as a browser would.
async fn sign_in(admin: &Client) -> anyhow::Result<(User, Client)> {
    let login = LoginRequest { name: "ann".parse()?, password: Password::new(SecretText::generate("")?.expose()) };
    let request = UserRequest {
        id: None,
        name: login.name.clone(),
        password: Some(login.password.clone()),
        role: UserRole::User,
    };
    let user = admin.create_user(&request).await?;
    line(format_args!("  user     {} made, with a random password", user.name))?;
    let tokens = admin.login(&login).await?;
    let client = admin.with_credential(Some(SecretText::from_presented(tokens.access_token)));
    line(format_args!("  sign-in  {} has an access token for {} s", user.name, tokens.expires_in))?;
    Ok((user, client))
}

/// Opens a socket that is the user's own.
async fn open_socket(client: &Client, room: &RoomName) -> anyhow::Result<Socket> {
    let ticket = TicketRequest { user_id: None, origin: None, grants: Grants::default() };
    let socket = client.connect(SocketOptions::ticket(client.mint_ticket(&ticket).await?)).await?;
    let hello = socket.hello();
    line(format_args!("  socket   {} opened with a single-use ticket by {}", hello.conn_id, hello.instance))?;
    socket.handle().join(room, Since::default()).await?;
    line(format_args!("  room     {room} joined\n"))?;
    Ok(socket)
}

/// An open socket, and what an administrator does meanwhile.
struct Story<'a> {
    admin: &'a Client,
    room: RoomName,
    socket: Socket,
    start: Instant,
    events: usize,
}

impl Story<'_> {
    async fn schedule(&mut self) -> anyhow::Result<()> {
        self.admin.create_task(&self.task("tick", Some("1s"))?).await?;
        line(format_args!("  task     tick: every second an event to room {}", self.room))?;
        for _ in 0..TICKS {
            self.event("tick").await?;
        }
        Ok(())
    }

    async fn trigger(&mut self) -> anyhow::Result<()> {
        let hello = self.admin.create_task(&self.task("hello", None)?).await?;
        let input = JsonText::parse(r#"{"name":"world"}"#)?;
        let trigger = TriggerRequest { input: Some(input), ..TriggerRequest::default() };
        let run = self.admin.trigger_task(hello.id, &trigger).await?.run_id;
        line(format_args!("\n  run      {run} of task hello, triggered by hand"))?;
        self.event("hello").await?;
        self.ended(run).await
    }

    /// Triggers a task as somebody does who has nothing but the secret of its webhook.
    async fn webhook(&mut self) -> anyhow::Result<()> {
        let paid = self.admin.create_task(&self.task("paid", None)?).await?;
        let made = self.admin.create_webhook_secret(paid.id, &WebhookSecretRequest::default()).await?;
        let secret = SecretText::from_presented(made.secret);
        let delivery = WebhookDelivery::of_json("msg_1", &JsonText::parse(r#"{"invoice":4711}"#)?);
        let sender = self.admin.with_credential(None);
        let run = sender.send_webhook(&paid.spec.name, &secret, &delivery).await?.run_id;
        line(format_args!("\n  webhook  signed with a secret of task paid: run {run}"))?;
        self.event("paid").await?;
        self.ended(run).await
    }

    async fn publish(&mut self, user: &User) -> anyhow::Result<()> {
        line(format_args!("\n  publish  to user {}, on whichever replica their sockets are", user.name))?;
        let note = PublishRequest {
            event: "note".parse()?,
            payload: JsonText::parse(r#"{"text":"for your eyes only"}"#)?,
            msg_id: None,
            ephemeral: false,
        };
        self.admin.publish_to_user(&user.id, &note).await?;
        self.event("note").await
    }

    /// Defines a task that publishes an event of its own name to the room.
    fn task(&self, name: &str, every: Option<&str>) -> anyhow::Result<TaskSpec> {
        let mut spec = serde_json::json!({
            "name": name,
            "action": { "event": { "to": { "room": self.room }, "event": name } },
        });
        if let Some(interval) = every {
            spec["schedule"] = serde_json::json!({ "every": { "interval": interval } });
        }
        // Through text: a payload is kept verbatim, which a JSON tree cannot do.
        Ok(serde_json::from_str(&spec.to_string())?)
    }

    /// Waits for an event of this name, and prints it with the time since the socket was opened.
    async fn event(&mut self, name: &str) -> anyhow::Result<()> {
        let frame = self.next(name).await?;
        self.events += 1;
        let offset = frame.offset.map_or(String::new(), |offset| format!("#{offset}"));
        let EventFrame { event, room, payload, .. } = &frame;
        line(format_args!("  {}  event  {event} {offset} in {room}  {}", self.elapsed(), payload.as_str()))
    }

    async fn next(&mut self, name: &str) -> anyhow::Result<EventFrame> {
        loop {
            match self.socket.next().await {
                Some(SocketEvent::Event(frame)) if frame.event.as_str() == name => return Ok(frame),
                Some(SocketEvent::Closed { code, reason }) => bail!("the socket was closed: {code} {reason}"),
                Some(_) => {}
                None => bail!("the socket ended"),
            }
        }
    }

    /// Waits until a run has ended, a moment after its event arrives, and prints how.
    async fn ended(&self, run: RunId) -> anyhow::Result<()> {
        loop {
            let state = self.admin.get_run(run).await?.state;
            if state.is_terminal() {
                return line(format_args!("  {}  run    {state}", self.elapsed()));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn elapsed(&self) -> String {
        format!("{:>6.2}s", self.start.elapsed().as_secs_f64())
    }
}
