//! An ordinary client beside an attack.

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

/// What an ordinary client met.
#[derive(Debug, Default)]
pub(super) struct Met {
    /// Questions that were answered.
    pub(super) answered: u64,
    /// Times that it was told to come again, and did.
    pub(super) sent_away: u64,
    /// The longest that one answer took, with all coming again.
    pub(super) slowest: Duration,
    /// What it asked in vain.
    pub(super) failed: Vec<String>,
}

pub(super) struct Probe {
    stop: watch::Sender<bool>,
    task: JoinHandle<Met>,
}

impl Probe {
    /// Asks in turn until it is stopped.
    #[expect(clippy::disallowed_methods, reason = "awaited in `stop`")]
    pub(super) fn start(questions: Vec<Question>) -> Probe {
        let (stop, mut stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut met = Met::default();
            for question in questions.iter().cycle() {
                if *stopped.borrow_and_update() {
                    break;
                }
                met.ask(question).await;
                let _ = tokio::time::timeout(PAUSE, stopped.changed()).await;
            }
            met
        });
        Probe { stop, task }
    }

    /// What it met.
    pub(super) async fn stop(self) -> Met {
        self.stop.send_replace(true);
        self.task.await.expect("the probe does not panic")
    }
}

impl Met {
    async fn ask(&mut self, question: &Question) {
        let began = tokio::time::Instant::now();
        let answered = loop {
            match once(question).await {
                Err(Refusal::Later(_)) if began.elapsed() < PATIENCE => {
                    self.sent_away += 1;
                    // As `Retry-After` says.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                answered => break answered,
            }
        };
        self.slowest = self.slowest.max(began.elapsed());
        match answered {
            Ok(()) => self.answered += 1,
            Err(Refusal::Later(why) | Refusal::Failed(why)) => self.failed.push(why),
        }
    }
}

/// Why there was no success.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Too much at once: 503 with `Retry-After`.
    Later(String),
    /// Anything else.
    Failed(String),
}

/// Asks once, over a connection of its own.
pub(super) async fn once(question: &Question) -> Result<(), Refusal> {
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
    let failed = |why: reqwest::Error| {
        Refusal::Failed(format!("{} {}: {why:?}", question.method, question.url))
    };
    let answer = request.send().await.map_err(failed)?;
    let status = answer.status();
    let later = answer.headers().contains_key("retry-after");
    let text = answer.text().await.map_err(failed)?;
    if status.is_success() {
        return Ok(());
    }
    let text: String = text.chars().take(200).collect();
    let why = format!("{} {}: {status} {text}", question.method, question.url);
    Err(if later && text.contains("\"overloaded\"") {
        Refusal::Later(why)
    } else {
        Refusal::Failed(why)
    })
}
