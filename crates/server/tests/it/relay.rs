//! A way to a server that can be cut. It does not look at what passes.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Passes connections on until it is dropped.
pub(crate) struct Relay {
    address: SocketAddr,
    cuts: watch::Sender<()>,
    _stop: DropGuard,
}

impl Relay {
    /// Starts a relay before the server at `url`.
    pub(crate) async fn before(url: &str) -> Self {
        let server = url.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = watch::Sender::default();
        let stop = CancellationToken::new();
        let tracker = TaskTracker::new();
        let accept = {
            let (cuts, stop, tracker) = (cuts.clone(), stop.clone(), tracker.clone());
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let passing = pass(client, server.clone(), cuts.subscribe());
                    tracker.spawn(stop.clone().run_until_cancelled_owned(passing));
                }
            }
        };
        tracker.spawn(stop.clone().run_until_cancelled_owned(accept));
        Self { address, cuts, _stop: stop.drop_guard() }
    }

    /// Returns the address that leads through the relay.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends all connections that exist.
    pub(crate) fn cut(&self) {
        self.cuts.send_replace(());
    }
}

async fn pass(mut client: TcpStream, server: String, mut cuts: watch::Receiver<()>) {
    let passing = async {
        let mut server = TcpStream::connect(server).await?;
        copy_bidirectional(&mut client, &mut server).await
    };
    tokio::select! {
        // Either side has ended, or the server is not there.
        _ = passing => {}
        _ = cuts.changed() => {}
    }
}
