//! Following a log through a feed that may stop, skip, repeat or break: what the adapters for remote logs share.
//!
//! Owns: the pure [`machine`] and the shell around it, which moves deliveries, looks at the head and changes of the link into
//! it and does what it says. There is no task: everything happens while somebody waits in `next`, and the feed's own flow
//! control holds the sender back while nobody does.

pub mod machine;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use schemas::event::record_hash;
use schemas::{Hash, LogId, Position};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::identity::recognise;
use crate::options::Options;
use crate::port::{Entry, Failure, Head, Seen, Subscription};
use machine::{FollowMachine, Input, Marked, Opened, Output};

/// What whoever decides says about the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its identity.
    pub log_id: LogId,
    /// Its last record.
    pub last: Position,
    /// When what keeps the log was made, in its own words; only ever compared. Empty where that is not told.
    pub made: String,
}

/// Something that came through a feed.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A record.
    Record {
        /// Counts the feed's records from 1.
        number: u64,
        /// The record.
        entry: Entry,
    },
    /// The feed lives.
    Heartbeat {
        /// How many records it has sent.
        delivered: u64,
    },
    /// Something else, of no interest.
    Other,
}

/// Records from a position on, exactly as they arrive. Nothing heals itself here.
#[async_trait]
pub(crate) trait Feed: Send {
    /// The next arrival; `None` when the feed ended. Cancel safe.
    async fn arrival(&mut self) -> Option<Result<Arrival, Failure>>;
}

/// An open feed.
pub(crate) struct OpenFeed {
    pub(crate) feed: Box<dyn Feed>,
    /// The log, as it was just before the feed was opened.
    pub(crate) facts: Facts,
    /// Records that it had to send at first.
    pub(crate) left: u64,
}

/// Where feeds come from.
#[async_trait]
pub(crate) trait Source: Send + Sync + 'static {
    /// Opens a feed behind a position.
    async fn open(&self, log_id: LogId, after: Position) -> Result<OpenFeed, Failure>;
    /// The record at exactly this position, asked of whoever decides.
    async fn record(&self, position: Position) -> Result<Option<Entry>, Failure>;
    /// Asks whoever decides.
    async fn look(&self) -> Result<Facts, Failure>;
    /// Changes to true whenever the link comes back, to false when it goes.
    fn link(&self) -> watch::Receiver<bool>;
    /// How to follow.
    fn options(&self) -> &Options;
}

/// Work under way. It is kept here and not in `next`, so that a cancelled `next` loses nothing.
enum Work {
    Opened(Result<(OpenFeed, Option<Hash>), Failure>),
    Looked(Result<(Facts, Marked), Failure>),
}

struct Following {
    source: Arc<dyn Source>,
    log_id: LogId,
    machine: FollowMachine,
    feed: Option<Box<dyn Feed>>,
    work: Option<BoxFuture<'static, Work>>,
    link: watch::Receiver<bool>,
    watchdog: Interval,
    begun: Instant,
    over: bool,
}

/// Starts to follow: the log must be the one of `seen`.
pub(crate) async fn follow(
    source: Arc<dyn Source>,
    seen: Seen,
) -> Result<Box<dyn Subscription>, Failure> {
    let options = source.options();
    // Nothing met yet: what was seen is what must be there. Another one met: the comparison below refuses.
    let _ = options.identity.meet(seen.log_id);
    let (interval, away_max) = (options.watchdog_interval, options.away_max);
    let facts = source.look().await?;
    let head = Head {
        log_id: facts.log_id,
        position: facts.last,
    };
    recognise(seen, head)?;
    let mut watchdog = tokio::time::interval_at(Instant::now() + interval, interval);
    watchdog.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut link = source.link();
    link.borrow_and_update();
    let mut following = Following {
        machine: FollowMachine::new(seen.position, seen.record, away_max),
        feed: None,
        work: None,
        log_id: facts.log_id,
        source,
        link,
        watchdog,
        begun: Instant::now(),
        over: false,
    };
    following.open(seen.position, Duration::ZERO);
    Ok(Box::new(following))
}

impl Following {
    fn open(&mut self, after: Position, pause: Duration) {
        self.feed = None;
        let (source, log_id) = (self.source.clone(), self.log_id);
        let open = async move {
            tokio::time::sleep(pause).await;
            let opened = source.open(log_id, after).await?;
            // After the feed was opened: what it delivers follows this very record.
            Ok((opened, mark(&*source, after).await?))
        };
        self.work = Some(open.map(Work::Opened).boxed());
    }

    fn look(&mut self) {
        // One thing at a time: what is under way will tell more than a look.
        if self.work.is_none() {
            let (source, position) = (self.source.clone(), self.machine.cursor());
            let look = async move {
                let facts = source.look().await?;
                let hash = mark(&*source, position).await?;
                Ok((facts, Marked { position, hash }))
            };
            self.work = Some(look.map(Work::Looked).boxed());
        }
    }

    /// Waits for the next thing that happens. Cancel safe: each branch only waits.
    async fn happening(&mut self) -> Option<Input> {
        let (work, feed) = (&mut self.work, &mut self.feed);
        let worked = async {
            match work {
                Some(work) => work.await,
                None => std::future::pending().await,
            }
        };
        let arrived = async {
            match feed {
                Some(feed) => feed.arrival().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            done = worked => {
                self.work = None;
                Some(match done {
                    Work::Looked(looked) => Input::Looked(looked),
                    Work::Opened(Ok((OpenFeed { feed, facts, left }, mark))) => {
                        self.feed = Some(feed);
                        Input::Opened(Ok(Opened { facts, left, mark }))
                    }
                    Work::Opened(Err(why)) => Input::Opened(Err(why)),
                })
            }
            arrival = arrived => match arrival {
                Some(Ok(Arrival::Record { number, entry })) => Some(Input::Record { number, entry }),
                Some(Ok(Arrival::Heartbeat { delivered })) => Some(Input::Heartbeat { delivered }),
                Some(Ok(Arrival::Other)) => None,
                Some(Err(why)) => Some(Input::Broken(why.to_string())),
                None => Some(Input::Broken("the deliveries broke off".to_owned())),
            },
            _ = self.watchdog.tick() => {
                self.look();
                None
            }
            changed = self.link.changed() => {
                let connected = changed.is_ok() && *self.link.borrow_and_update();
                connected.then_some(Input::LinkRestored)
            }
        }
    }
}

/// The hash of the record at a position.
async fn mark(source: &dyn Source, position: Position) -> Result<Option<Hash>, Failure> {
    if position == Position::START {
        return Ok(None);
    }
    let there = source.record(position).await?;
    Ok(there.map(|entry| record_hash(&entry.subject, &entry.bytes)))
}

#[async_trait]
impl Subscription for Following {
    async fn next(&mut self) -> Result<Entry, Failure> {
        if self.over {
            return Err(Failure::Determinate("the subscription is over".to_owned()));
        }
        loop {
            let Some(input) = self.happening().await else {
                continue;
            };
            match self.machine.step(input, self.begun.elapsed()) {
                Output::Deliver(entry) => return Ok(entry),
                Output::Reopen { after, pause } => self.open(after, pause),
                Output::Nothing => {}
                Output::End(why) => {
                    self.over = true;
                    self.feed = None;
                    return Err(why.into());
                }
            }
        }
    }
}
