//! Following.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{try_join, try_join_all};
use schemas::{LogId, Position, Subject};
use uuid::Uuid;

use super::records::{note, put, subject};
use super::{Factory, Outcome, head, said, same, seen};
use crate::port::{Entry, EventLog, Failure, Foreign, Seen, Subscription};

async fn fill(
    log: &Arc<dyn EventLog>,
    subject: &Subject,
    count: u64,
) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    let mut tail = Position::START;
    for number in 0..count {
        tail = put(log, subject, tail, note(number)).await?;
        entries.push(Entry {
            position: tail,
            subject: subject.clone(),
            bytes: note(number),
        });
    }
    Ok(entries)
}

async fn take(records: &mut Box<dyn Subscription>, count: usize) -> Result<Vec<Entry>, String> {
    let mut out = Vec::new();
    while out.len() < count {
        out.push(records.next().await.map_err(said)?);
    }
    Ok(out)
}

pub(super) async fn a_follower_gets_everything_once_and_in_order(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let old = fill(&log, &subject("old")?, 300).await?;
    let mut records = log.follow(seen(&log, 0).await?).await.map_err(said)?;
    same("what was there", &take(&mut records, 300).await?, &old)?;
    let new = fill(&log, &subject("new")?, 50).await?;
    same("what came", &take(&mut records, 50).await?, &new)
}

pub(super) async fn a_follower_starts_in_the_middle(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let entries = fill(&log, &subject("m")?, 40).await?;
    for start in [0, 17, 38] {
        let after = entries[start].position.0;
        let mut records = log.follow(seen(&log, after).await?).await.map_err(said)?;
        let rest = &entries[start + 1..];
        same(
            "the rest",
            &take(&mut records, rest.len()).await?,
            &rest.to_vec(),
        )?;
    }
    Ok(())
}

pub(super) async fn a_follower_misses_nothing_while_others_write(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let writers: Vec<Subject> = (0..8)
        .map(|number| subject(&format!("w{number}")))
        .collect::<Result<_, _>>()?;
    let mut records = log.follow(seen(&log, 0).await?).await.map_err(said)?;
    let writing = try_join_all(writers.iter().map(|subject| fill(&log, subject, 60)));
    let (written, followed) = try_join(writing, take(&mut records, 8 * 60)).await?;
    let mut expected: Vec<Entry> = written.into_iter().flatten().collect();
    expected.sort_by_key(|entry| entry.position);
    if followed == expected {
        Ok(())
    } else {
        let at = followed
            .iter()
            .zip(&expected)
            .position(|(found, right)| found != right);
        Err(format!("differs at {at:?}"))
    }
}

pub(super) async fn a_cancelled_wait_loses_nothing(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let subject = subject("m")?;
    let mut records = log.follow(seen(&log, 0).await?).await.map_err(said)?;
    let writing = fill(&log, &subject, 100);
    let following = async {
        let mut out = Vec::new();
        while out.len() < 100 {
            // Most of these are cancelled in the middle of something.
            if let Ok(next) = tokio::time::timeout(Duration::from_micros(200), records.next()).await
            {
                out.push(next.map_err(said)?);
            }
        }
        Ok(out)
    };
    let (written, followed) = try_join(writing, following).await?;
    same("the records", &followed, &written)
}

pub(super) async fn a_quiet_follower_waits(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let entries = fill(&log, &subject("m")?, 1).await?;
    let last = entries[0].position.0;
    let mut records = log.follow(seen(&log, last).await?).await.map_err(said)?;
    match tokio::time::timeout(Duration::from_millis(300), records.next()).await {
        Err(_) => {}
        Ok(came) => return Err(format!("{came:?} came out of nothing")),
    }
    let more = fill(&log, &subject("m2")?, 1).await?;
    same("the next", &take(&mut records, 1).await?, &more)
}

pub(super) async fn another_identity_is_refused(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    put(&log, &subject("m")?, Position::START, note(1)).await?;
    let actual = head(&log).await?.log_id;
    let known = LogId(Uuid::from_u128(1));
    for position in [0, 1] {
        let other = Seen {
            log_id: known,
            position: Position(position),
            record: None,
        };
        match log.follow(other).await {
            Err(Failure::Foreign(how)) => {
                same("how", &how, &Foreign::OtherIdentity { known, actual })?
            }
            Err(why) => return Err(format!("refused as {why:?}")),
            Ok(_) => return Err("it was followed".to_owned()),
        }
    }
    Ok(())
}

pub(super) async fn a_log_that_ends_before_what_was_seen_is_refused(
    factory: &dyn Factory,
) -> Outcome {
    let log = factory.fresh().await;
    let entries = fill(&log, &subject("m")?, 3).await?;
    let actual = entries[2].position;
    let known = Position(actual.0 + 1);
    match log.follow(seen(&log, known.0).await?).await {
        Err(Failure::Foreign(how)) => same("how", &how, &Foreign::Behind { known, actual }),
        Err(why) => Err(format!("refused as {why:?}")),
        Ok(_) => Err("it was followed".to_owned()),
    }
}
