//! Sign-in: whether an unknown user can be told from a wrong password by time, and how fast a disabled user is out.

use std::path::Path;
use std::time::Duration;

use switchboard_client::{Client, ClientError, Socket, SocketEvent, SocketOptions};
use switchboard_model::secret_text::SecretText;
use switchboard_model::ticket::Grants;
use switchboard_model::user::{User, UserRole};
use switchboard_model::wire::auth::{LoginRequest, Password, TokenResponse, UserRequest, UserUpdate};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::TicketRequest;
use switchboard_testkit::Cluster;
use tokio::time::Instant;

use crate::{median, milliseconds};

/// How many sign-ins of each kind are timed.
const SAMPLES: usize = 200;
/// By how much the medians may differ.
const MOST_DIFFERENCE: f64 = 0.1;
/// How many users are disabled.
const ROUNDS: usize = 40;
/// Within what time a disabled user must be out everywhere.
const MOST_TIME: Duration = Duration::from_secs(2);

const PASSWORD: &str = "correct horse battery staple";

/// Measures on two replicas, prints what it saw, and tells whether the bounds held.
pub(crate) async fn soak(server: &Path) -> bool {
    let unlimited = "1000000/1s";
    let cluster = Cluster::start(2)
        .binary(server)
        .env("SWITCHBOARD_LIMITS__LOGIN_ACCOUNT", unlimited)
        .env("SWITCHBOARD_LIMITS__LOGIN_ADDRESS", unlimited)
        .env("SWITCHBOARD_LIMITS__LOGIN_GLOBAL", unlimited)
        .env("SWITCHBOARD_LIMITS__PATIENCE", "1m")
        .await;
    let is_equal = equal_times(cluster.client(0)).await;
    let is_fast = revocation(&cluster).await;
    is_equal && is_fast
}

async fn create_user(client: &Client, name: &str) -> User {
    let request = UserRequest {
        id: None,
        name: name.parse().unwrap(),
        password: Some(Password::new(PASSWORD)),
        role: UserRole::User,
    };
    client.create_user(&request).await.unwrap()
}

fn login(name: &str, password: &str) -> LoginRequest {
    LoginRequest { name: name.parse().unwrap(), password: Password::new(password) }
}

fn refused<T>(result: Result<T, ClientError>) {
    assert_eq!(result.err().and_then(|error| error.code()), Some(ErrorCode::Unauthorized));
}

/// Times refusals of three kinds in turn, so that what disturbs the machine disturbs all of them.
async fn equal_times(client: &Client) -> bool {
    create_user(client, "known").await;
    disable(client, &create_user(client, "disabled").await).await;
    let anybody = client.with_credential(None);
    let kinds = [
        ("unknown user", login("nobody", PASSWORD)),
        ("wrong password", login("known", "a wrong guess")),
        ("disabled user", login("disabled", PASSWORD)),
    ];
    let mut times: [Vec<Duration>; 3] = Default::default();
    for _ in 0..SAMPLES {
        for ((_, request), times) in kinds.iter().zip(&mut times) {
            let started = Instant::now();
            refused(anybody.login(request).await);
            times.push(started.elapsed());
        }
    }
    let medians = times.map(|mut times| median(&mut times));
    for ((kind, _), median) in kinds.iter().zip(medians) {
        println!("sign-in refused, {kind}: median {:.2} ms of {SAMPLES}", milliseconds(median));
    }
    let (least, most) = (medians.iter().min().unwrap(), medians.iter().max().unwrap());
    let difference = most.as_secs_f64() / least.as_secs_f64() - 1.0;
    println!("largest difference of medians: {:.1} %", difference * 100.0);
    difference <= MOST_DIFFERENCE
}

async fn disable(client: &Client, user: &User) {
    let update = UserUpdate { version: user.version, role: user.role, is_disabled: true };
    client.update_user(&user.id, &update).await.unwrap();
}

async fn open_socket(client: &Client) -> Socket {
    let ticket = TicketRequest { user_id: None, origin: None, grants: Grants::default() };
    client.connect(SocketOptions::ticket(client.mint_ticket(&ticket).await.unwrap())).await.unwrap()
}

async fn closed(mut socket: Socket) {
    while let Some(event) = socket.next().await {
        if matches!(event, SocketEvent::Closed { .. }) {
            return;
        }
    }
}

async fn signed_out(client: &Client) {
    while client.me().await.is_ok() {}
}

/// Disables signed-in users and measures until requests and sockets are refused on both replicas.
async fn revocation(cluster: &Cluster) -> bool {
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("user{round}");
        let user = create_user(cluster.client(0), &name).await;
        let anybody = cluster.client(0).with_credential(None);
        let tokens: TokenResponse = anybody.login(&login(&name, PASSWORD)).await.unwrap();
        let token = SecretText::from_presented(tokens.access_token);
        let here = cluster.client(0).with_credential(Some(token.clone()));
        let there = cluster.client(1).with_credential(Some(token));
        let (socket_here, socket_there) = (open_socket(&here).await, open_socket(&there).await);
        let started = Instant::now();
        disable(cluster.client(round % 2), &user).await;
        tokio::join!(closed(socket_here), closed(socket_there), signed_out(&here), signed_out(&there));
        times.push(started.elapsed());
    }
    let longest = times.iter().max().copied().unwrap_or_default();
    println!(
        "disabled user out on both replicas, requests and sockets: median {:.1} ms, longest {:.1} ms of {ROUNDS}",
        milliseconds(median(&mut times)),
        milliseconds(longest)
    );
    longest <= MOST_TIME
}
