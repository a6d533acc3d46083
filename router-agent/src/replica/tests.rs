use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use event_log::memory::MemoryLog;
use event_log::{Appended, EventLog as _};
use schemas::event::{Action, Actor, Event, PolicyChange, Record};
use schemas::{CommandId, Hash, LogId, Name, PolicyKind, Position, Revision, Scope, Timestamp};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Followed, Replica};
use crate::local_copy::LocalCopy;

/// A first change of the widest policy.
fn record() -> Record {
    let name = |text: &str| Name::new(text).unwrap();
    Record {
        command_id: CommandId(Uuid::from_u128(1)),
        actor: Actor {
            name: name("tester"),
            via: name("token"),
        },
        at: Timestamp::from_unix_ms(1),
        reason: None,
        forced: false,
        fingerprint: Hash::ZERO,
        event: Event::PoliciesChanged {
            changes: vec![PolicyChange {
                kind: PolicyKind::WorkerSelection,
                scope: Scope::default(),
                action: Action::Reset,
                revision: Revision(1),
                decided_on: Position::START,
                previous_hash: Hash::ZERO,
                overlay: Default::default(),
            }],
        },
    }
}

/// What an agent applies, it must know again after `kill -9`: nobody hears of a record that is written but not flushed.
#[tokio::test]
async fn regression_a_change_is_published_only_after_the_local_copy_has_flushed_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("replica");
    let (copy, kept) = LocalCopy::open(&path, Timestamp::from_unix_ms(1)).unwrap();
    let log = Arc::new(MemoryLog::new(LogId(Uuid::from_u128(1))));
    let (followed, mut seen) = watch::channel(Followed::at_start(kept.as_ref()));
    let replica = Replica::new(Arc::new(log.clone()), copy.clone(), kept, followed);
    let stop = CancellationToken::new();
    let running = replica.run(stop.clone());
    let watching = async {
        let empty = seen.wait_for(|seen| seen.state.is_some()).await.unwrap();
        assert_eq!(empty.log.position, Position::START);
        drop(empty);
        seen.mark_unchanged();

        let flushing = copy.flushing();
        let held = flushing.lock().await;
        let flushes = || copy.flushes().load(std::sync::atomic::Ordering::SeqCst);
        let before = flushes();
        let record = record();
        let bytes = Bytes::from(record.to_bytes());
        let appended = log.append(&record.subject(), Position::START, bytes).await;
        let Appended::Committed(position) = appended.unwrap() else {
            panic!("nobody else writes");
        };
        // Written, and about to be flushed.
        while flushes() == before {
            tokio::task::yield_now().await;
        }
        let early = tokio::time::timeout(Duration::from_millis(100), seen.changed()).await;
        assert!(
            early.is_err(),
            "published before it was flushed: {:?}",
            seen.borrow().log
        );

        drop(held);
        let there = seen.wait_for(|seen| seen.log.position == position).await;
        assert_eq!(there.unwrap().state.as_ref().unwrap().policies.len(), 1);
        stop.cancel();
    };
    let both = async { tokio::join!(running, watching) };
    let ended = tokio::time::timeout(Duration::from_secs(30), both).await;
    assert!(ended.is_ok(), "nothing was published");
}
