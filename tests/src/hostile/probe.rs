//! An ordinary client beside an attack.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::{Client, Method};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::PATIENCE;

/// One thing that an ordinary client asks.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) method: Method,
    pub(super) url: String,
    pub(super) body: Option<String>,
}

impl Question {
    pub(super) fn get(url: String) -> Question {
        Question {
            method: Method::GET,
            url,
            body: None,
        }
    }
}

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Probe {
    stop: watch::Sender<bool>,
    asked: Arc<AtomicU64>,
    task: JoinHandle<Vec<String>>,
}

impl Probe {
    /// Asks in turn until it is stopped.
    #[expect(clippy::disallowed_methods, reason = "awaited in `stop`")]
    pub(super) fn start(questions: Vec<Question>) -> Probe {
        let (stop, mut stopped) = watch::channel(false);
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            let mut failed = Vec::new();
            for question in questions.iter().cycle() {
                if *stopped.borrow_and_update() {
                    break;
                }
                match once(question).await {
                    Ok(()) => {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(why) => failed.push(why),
                }
                let _ = tokio::time::timeout(PAUSE, stopped.changed()).await;
            }
            failed
        });
        Probe { stop, asked, task }
    }

    /// How many were answered, and what went wrong with the others.
    pub(super) async fn stop(self) -> (u64, Vec<String>) {
        self.stop.send_replace(true);
        let failed = self.task.await.expect("the probe does not panic");
        (self.asked.load(Ordering::Relaxed), failed)
    }
}

/// Asks once, over a connection of its own.
pub(super) async fn once(question: &Question) -> Result<(), String> {
    let client = Client::builder()
        .timeout(PATIENCE)
        .no_proxy()
        .pool_max_idle_per_host(0)
        .build()
        .expect("an HTTP client");
    let mut request = client.request(question.method.clone(), &question.url);
    if let Some(body) = &question.body {
        request = request
            .header("content-type", "application/json")
            .body(body.clone());
    }
    let shown = || format!("{} {}", question.method, question.url);
    let answer = request
        .send()
        .await
        .map_err(|why| format!("{}: {why:?}", shown()))?;
    let status = answer.status();
    let text = answer
        .text()
        .await
        .map_err(|why| format!("{}: {why:?}", shown()))?;
    if status.is_success() {
        Ok(())
    } else {
        let text: String = text.chars().take(200).collect();
        Err(format!("{}: {status} {text}", shown()))
    }
}
