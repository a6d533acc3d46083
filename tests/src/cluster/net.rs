//! The network between the parties of a cluster, with faults: every connection goes through a door here, and what flows from
//! one party to another obeys the lane between them.
//!
//! A cut lane loses nothing and tells nobody, as a network does: what was sent waits in the sockets and arrives after healing
//! (as TCP would repeat it), closing included, unless an end has given up by then.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use event_log::ambient::Tasks;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How one party's bytes get to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// At once.
    Open,
    /// Later, and not more than so many per second.
    Slow {
        /// Later by this.
        delay: Duration,
        /// Per second and connection.
        bytes_per_second: u32,
    },
    /// Not at all.
    Cut,
}

/// The lanes between all parties, numbered from 0.
#[derive(Debug, Clone)]
pub struct Net {
    parties: usize,
    lanes: Arc<Vec<watch::Sender<Lane>>>,
    tasks: Tasks,
}

/// Bound: chunks under way on a slow lane, and bytes of each.
const UNDER_WAY: usize = 256;
const CHUNK: usize = 16 * 1024;

impl Net {
    /// Between so many; all lanes open.
    #[must_use]
    pub fn new(parties: usize) -> Net {
        Net {
            parties,
            lanes: Arc::new(
                (0..parties * parties)
                    .map(|_| watch::Sender::new(Lane::Open))
                    .collect(),
            ),
            tasks: Tasks::new(),
        }
    }

    fn lane(&self, from: usize, to: usize) -> &watch::Sender<Lane> {
        &self.lanes[from * self.parties + to]
    }

    /// Changes what one party's bytes to another one meet.
    pub fn set(&self, from: usize, to: usize, lane: Lane) {
        self.lane(from, to).send_replace(lane);
    }

    /// Changes all lanes from one party, to it, or both.
    pub fn set_all(&self, party: usize, outgoing: bool, incoming: bool, lane: Lane) {
        for other in (0..self.parties).filter(|other| *other != party) {
            if outgoing {
                self.set(party, other, lane);
            }
            if incoming {
                self.set(other, party, lane);
            }
        }
    }

    /// Opens all lanes.
    pub fn heal(&self) {
        for lane in self.lanes.iter() {
            lane.send_replace(Lane::Open);
        }
    }

    /// A port through which `from` reaches the port `target` of `to`.
    ///
    /// # Panics
    /// When the system has no port left.
    pub async fn door(&self, from: usize, to: usize, target: u16) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let net = self.clone();
        let stop = self.tasks.stopping();
        self.tasks.start("door", async move {
            loop {
                let accepted = tokio::select! {
                    () = stop.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                // A connection that broke before it was taken is nobody's.
                let Ok((near, _)) = accepted else { continue };
                let there = (
                    net.lane(from, to).subscribe(),
                    net.lane(to, from).subscribe(),
                );
                let stop = stop.clone();
                net.tasks.start("connection", async move {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = carry(near, target, there) => {}
                    }
                });
            }
        });
        port
    }

    /// Closes everything.
    pub async fn close(&self) {
        self.tasks.stop(Duration::from_secs(5)).await;
    }
}

type Lanes = (watch::Receiver<Lane>, watch::Receiver<Lane>);

async fn carry(near: TcpStream, target: u16, (mut there, back): Lanes) {
    // A cut network does not even let a connection be made.
    passable(&mut there).await;
    let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await else {
        return;
    };
    // Without it small messages wait for each other.
    let _ = near.set_nodelay(true);
    let _ = far.set_nodelay(true);
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    let outward = pipe(near_in, far_out, there.clone(), back.clone());
    let inward = pipe(far_in, near_out, back, there);
    // One direction that is broken ends both; one that was closed in order lets the other one finish.
    tokio::pin!(outward, inward);
    let (mut out_open, mut in_open) = (true, true);
    while out_open || in_open {
        let ended = tokio::select! {
            ended = &mut outward, if out_open => { out_open = false; ended }
            ended = &mut inward, if in_open => { in_open = false; ended }
        };
        if ended == Ended::Broken {
            return;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    InOrder,
    Broken,
}

/// Bytes of one direction: read, kept until they are due, written.
async fn pipe(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    lane: watch::Receiver<Lane>,
    mut back: watch::Receiver<Lane>,
) -> Ended {
    let (push, mut pull) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let mut reading = lane.clone();
    let mut writing = lane;
    let read = async move {
        let mut due = Instant::now();
        loop {
            let mut chunk = vec![0; CHUNK];
            match from.read(&mut chunk).await {
                Ok(0) => return Ended::InOrder,
                Ok(length) => {
                    chunk.truncate(length);
                    let now = Instant::now();
                    due = match *reading.borrow_and_update() {
                        Lane::Open | Lane::Cut => now,
                        Lane::Slow {
                            delay,
                            bytes_per_second,
                        } => {
                            let length = u32::try_from(length).unwrap_or(u32::MAX);
                            let takes = Duration::from_secs(1) * length / bytes_per_second.max(1);
                            (now + delay).max(due + takes)
                        }
                    };
                    if push.send((due, chunk)).await.is_err() {
                        return Ended::Broken;
                    }
                }
                Err(_) => return Ended::Broken,
            }
        }
    };
    let write = async move {
        while let Some((due, chunk)) = pull.recv().await {
            tokio::time::sleep_until(due).await;
            passable(&mut writing).await;
            if to.write_all(&chunk).await.is_err() {
                // The other end is gone; the news of that takes the way back.
                passable(&mut back).await;
                return Ended::Broken;
            }
        }
        passable(&mut writing).await;
        // Already closed is as good.
        let _ = to.shutdown().await;
        Ended::InOrder
    };
    let (read, written) = tokio::join!(read, write);
    if read == Ended::Broken { read } else { written }
}

/// Waits while a lane is cut.
async fn passable(lane: &mut watch::Receiver<Lane>) {
    // The network outlives its connections.
    let _ = lane.wait_for(|lane| *lane != Lane::Cut).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> (u16, Tasks) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let tasks = Tasks::new();
        tasks.start("echo", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (mut from, mut to) = stream.into_split();
                // Ends with its connection.
                let _ = tokio::io::copy(&mut from, &mut to).await;
            }
        });
        (port, tasks)
    }

    #[tokio::test]
    async fn each_direction_obeys_its_own_lane() {
        let (port, _tasks) = echo().await;
        let net = Net::new(2);
        let door = net.door(0, 1, port).await;
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, door))
            .await
            .expect("open");
        let mut buffer = [0; 4];
        stream.write_all(b"one ").await.expect("sent");
        stream.read_exact(&mut buffer).await.expect("back");
        for (from, to) in [(0, 1), (1, 0)] {
            net.set(from, to, Lane::Cut);
            stream.write_all(b"two ").await.expect("sent");
            let silence =
                tokio::time::timeout(Duration::from_millis(150), stream.read_exact(&mut buffer));
            assert!(silence.await.is_err(), "{from} to {to} is cut");
            net.heal();
            stream
                .read_exact(&mut buffer)
                .await
                .expect("back after healing");
            assert_eq!(&buffer, b"two ");
        }
        let delay = Duration::from_millis(60);
        net.set(
            0,
            1,
            Lane::Slow {
                delay,
                bytes_per_second: 1_000_000,
            },
        );
        let begun = Instant::now();
        stream.write_all(b"slow").await.expect("sent");
        stream.read_exact(&mut buffer).await.expect("back");
        assert!(begun.elapsed() >= delay);
        net.close().await;
    }
}
