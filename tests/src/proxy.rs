//! A TCP proxy whose link can be cut, both ways or one way, slowed down, and healed.
//!
//! What comes while the link is cut is held, as in a network that drops packets, and goes on after it was healed.

use std::time::Duration;

use event_log::ambient::Tasks;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Link {
    /// Everything passes.
    #[default]
    Open,
    /// Nothing passes.
    Cut,
    /// Only what the target says passes.
    Deaf,
    /// Only what is said to the target passes.
    Mute,
    /// Everything passes, each piece this late.
    Slow(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToTarget,
    FromTarget,
}

impl Link {
    fn passes(self, direction: Direction) -> bool {
        match self {
            Link::Open | Link::Slow(_) => true,
            Link::Cut => false,
            Link::Deaf => direction == Direction::FromTarget,
            Link::Mute => direction == Direction::ToTarget,
        }
    }
}

/// A proxy before one address. Dropping it ends it.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    link: watch::Sender<Link>,
    tasks: Tasks,
}

impl Proxy {
    /// Listens on a free loopback port and forwards to `target` (`HOST:PORT`).
    ///
    /// # Errors
    /// The system's.
    pub async fn start(target: &str) -> std::io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (link, seen) = watch::channel(Link::Open);
        let tasks = Tasks::new();
        let serve = serve(listener, target.to_owned(), seen, tasks.clone());
        tasks.start("proxy", serve);
        Ok(Proxy { port, link, tasks })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Makes the link so.
    pub fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.tasks.stopping().cancel();
    }
}

async fn serve(listener: TcpListener, target: String, link: watch::Receiver<Link>, tasks: Tasks) {
    let stop = tasks.stopping();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((near, _)) = accepted else { continue };
        let (target, link, stop) = (target.clone(), link.clone(), stop.clone());
        tasks.start("connection", async move {
            let Ok(far) = TcpStream::connect(&target).await else {
                return;
            };
            // Small pieces are sent at once, as between the two without a proxy.
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let (near_in, near_out) = near.into_split();
            let (far_in, far_out) = far.into_split();
            tokio::select! {
                () = stop.cancelled() => {}
                () = pump(near_in, far_out, Direction::ToTarget, link.clone()) => {}
                () = pump(far_in, near_out, Direction::FromTarget, link) => {}
            }
        });
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    mut link: watch::Receiver<Link>,
) {
    let mut piece = vec![0; 16 * 1024];
    loop {
        let Ok(length @ 1..) = from.read(&mut piece).await else {
            return;
        };
        let Ok(now) = link
            .wait_for(|link| link.passes(direction))
            .await
            .map(|link| *link)
        else {
            return;
        };
        if let Link::Slow(late) = now {
            tokio::time::sleep(late).await;
        }
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}
