//! Gentle traffic for a demo: prompts of a few conversations whose beginnings are shared, some more popular than others.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use schemas::Name;
use tokio::time::MissedTickBehavior;

use super::{Reference, ServeError};

/// Bound: requests of one generator at a time; a tick that finds so many is skipped.
const OPEN_MAX: usize = 64;

/// What is asked.
#[derive(Debug, Clone)]
pub struct Traffic {
    /// Of which model.
    pub model: Name,
    /// How often, per second.
    pub requests_per_s: f64,
    /// Conversations; each has a prefix of its own.
    pub conversations: u32,
    /// Tokens of a prefix.
    pub prefix_tokens: u32,
    /// Tokens that are new in each prompt.
    pub fresh_tokens: u32,
    /// Tokens of an answer.
    pub output_tokens: u32,
}

impl Traffic {
    /// 24 conversations that fit into four ordinary workers together, but not into one. With affinity the worker of the most
    /// popular one has most to do; without, all have the same and forget more.
    #[must_use]
    pub fn gentle(model: Name) -> Traffic {
        Traffic {
            model,
            requests_per_s: 40.0,
            conversations: 24,
            prefix_tokens: 512,
            fresh_tokens: 32,
            output_tokens: 4,
        }
    }

    /// Starts asking, until the frontend stops.
    pub fn start(self, frontend: &Arc<Reference>) {
        let (stop, me) = (frontend.tasks().stopping(), Arc::downgrade(frontend));
        frontend.tasks().start("traffic", async move {
            let period = Duration::from_secs_f64(1.0 / self.requests_per_s.clamp(0.01, 1_000.0));
            let mut tick = tokio::time::interval(period);
            tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
            let mut open = FuturesUnordered::new();
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    Some(()) = open.next() => {}
                    _ = tick.tick(), if open.len() < OPEN_MAX => {
                        let Some(frontend) = me.upgrade() else { return };
                        open.push(self.ask(frontend, self.prompt()));
                    }
                }
            }
        });
    }

    /// The first conversation gets a third of the requests, the second half of them a fifth.
    fn prompt(&self) -> Vec<u32> {
        let draw: f64 = rand::random();
        let conversation = (draw.powi(3) * f64::from(self.conversations)) as u32;
        let prefix = (0..self.prefix_tokens).map(|at| conversation * self.prefix_tokens + at);
        let fresh = (0..self.fresh_tokens).map(|_| rand::random::<u32>());
        prefix.chain(fresh).collect()
    }

    async fn ask(&self, frontend: Arc<Reference>, tokens: Vec<u32>) {
        let asked = frontend.complete(self.model.as_str(), &tokens, self.output_tokens);
        match asked.await {
            Ok(mut completion) => while completion.pieces.recv().await.is_some() {},
            // What the busy gate is for.
            Err(ServeError::Overloaded(_) | ServeError::Crowded(_)) => {}
            Err(why) => tracing::debug!(error = %why, "a request of the demo was not served"),
        }
    }
}
