//! Many connections at once, below HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use futures::stream::{StreamExt as _, iter};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

/// Connections that are made at the same time.
const AT_ONCE: usize = 128;

/// Connections that have sent what they had to send.
pub(super) struct Herd(Vec<TcpStream>);

impl Herd {
    /// `clients` connections, each of which sends `opening` and reads nothing. Those that are refused are left out.
    pub(super) async fn gather(to: SocketAddr, clients: usize, opening: &[u8]) -> Herd {
        let all = iter(0..clients).map(|_| async {
            // A small window: what is not read stays with the server.
            let socket = TcpSocket::new_v4().ok()?;
            socket.set_recv_buffer_size(4_096).ok()?;
            let mut stream = socket.connect(to).await.ok()?;
            // A server that has had enough closes; that is its right.
            let sent = stream.write_all(opening);
            let _ = tokio::time::timeout(Duration::from_secs(5), sent).await;
            Some(stream)
        });
        let all = all.buffer_unordered(AT_ONCE).filter_map(async |one| one);
        Herd(all.collect().await)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Each sends a little more.
    pub(super) async fn dribble(&mut self, bytes: &[u8]) {
        for stream in &mut self.0 {
            let sent = stream.write_all(bytes);
            let _ = tokio::time::timeout(Duration::from_millis(20), sent).await;
        }
    }

    /// Sends a little more again and again until each is closed by the server; how many were not, after `patience`.
    pub(super) async fn dribble_until_closed(&mut self, bytes: &[u8], patience: Duration) -> usize {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            self.dribble(bytes).await;
            self.drop_closed().await;
            if self.0.is_empty() || tokio::time::Instant::now() > deadline {
                return self.0.len();
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// What each of them has been sent by now, at most `most` bytes.
    pub(super) async fn read(&mut self, most: usize) -> Vec<Vec<u8>> {
        let all = iter(&mut self.0).map(async |stream| {
            let mut read = vec![0; most];
            let bytes =
                tokio::time::timeout(Duration::from_secs(120), stream.read(&mut read)).await;
            read.truncate(bytes.ok().and_then(Result::ok).unwrap_or(0));
            read
        });
        all.buffer_unordered(AT_ONCE).collect().await
    }

    async fn drop_closed(&mut self) {
        let mut open = Vec::new();
        for stream in self.0.drain(..) {
            let mut byte = [0];
            let look = tokio::time::timeout(Duration::from_millis(1), stream.peek(&mut byte)).await;
            match look {
                // It was told something, or nothing happened: both are open.
                Err(_) => open.push(stream),
                Ok(Ok(0) | Err(_)) => {}
                Ok(Ok(_)) => {
                    // An answer: the last thing before the end, which comes when it is read.
                    let mut stream = stream;
                    let mut rest = Vec::new();
                    let end = stream.read_to_end(&mut rest);
                    if tokio::time::timeout(Duration::from_secs(1), end)
                        .await
                        .is_err()
                    {
                        open.push(stream);
                    }
                }
            }
        }
        self.0 = open;
    }
}
