//! Reading without following.

use std::collections::BTreeMap;

use futures::future::join_all;
use schemas::{Position, Subject};

use super::records::{note, odd_policies, put, subject};
use super::{Factory, Outcome, head, said, same};
use crate::port::{Appended, Entry};

pub(super) async fn an_empty_log_is_empty_and_not_an_error(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let subject = subject("m")?;
    same("the head", &head(&log).await?.position, &Position::START)?;
    same(
        "next_on",
        &log.next_on(&subject, Position::START).await.map_err(said)?,
        &None,
    )?;
    for position in [0, 1, u64::MAX] {
        same(
            "at",
            &log.at(Position(position)).await.map_err(said)?,
            &None,
        )?;
    }
    let tails = log.tails().await.map_err(said)?;
    same("tails", &tails.entries, &Vec::new())?;
    same("their head", &tails.up_to, &head(&log).await?)
}

pub(super) async fn the_head_is_the_last_record(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let identity = head(&log).await?.log_id;
    for model in ["a", "b"] {
        let position = put(&log, &subject(model)?, Position::START, note(1)).await?;
        let now = head(&log).await?;
        same("the head", &now.position, &position)?;
        same("the identity", &now.log_id, &identity)?;
    }
    Ok(())
}

pub(super) async fn next_on_finds_the_first_later_record_of_the_subject(
    factory: &dyn Factory,
) -> Outcome {
    let log = factory.fresh().await;
    let (one, other) = (subject("m")?, subject("m2")?);
    let first = put(&log, &one, Position::START, note(1)).await?;
    put(&log, &other, Position::START, note(2)).await?;
    let second = put(&log, &one, first, note(3)).await?;
    for (after, expected) in [
        (Position::START, Some((first, note(1)))),
        (first, Some((second, note(3)))),
        (second, None),
        (Position(u64::MAX), None),
    ] {
        let found = log.next_on(&one, after).await.map_err(said)?;
        let found = found.map(|entry| (entry.position, entry.bytes));
        same(&format!("after {after}"), &found, &expected)?;
    }
    Ok(())
}

pub(super) async fn at_finds_exactly_that_position(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let subject = subject("m")?;
    let position = put(&log, &subject, Position::START, note(1)).await?;
    let expected = Entry {
        position,
        subject,
        bytes: note(1),
    };
    same(
        "at",
        &log.at(position).await.map_err(said)?,
        &Some(expected),
    )?;
    let beyond = log.at(Position(position.0 + 1)).await.map_err(said)?;
    same("beyond the end", &beyond, &None)
}

pub(super) async fn tails_hold_the_last_record_of_every_subject(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let mut expected: BTreeMap<Subject, Position> = BTreeMap::new();
    for number in 0..60_u64 {
        let subject = subject(&format!("m{}", number % 7))?;
        let tail = expected.get(&subject).copied().unwrap_or_default();
        let position = put(&log, &subject, tail, note(number)).await?;
        expected.insert(subject, position);
    }
    let tails = log.tails().await.map_err(said)?;
    same("how many", &tails.entries.len(), &expected.len())?;
    let found: BTreeMap<Subject, Position> = tails
        .entries
        .into_iter()
        .map(|entry| (entry.subject, entry.position))
        .collect();
    same("the tails", &found, &expected)?;
    same("their head", &tails.up_to, &head(&log).await?)
}

pub(super) async fn tails_of_2000_subjects_are_complete(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let subjects: Vec<Subject> = (0..2_000)
        .map(|number| subject(&format!("m{number}")))
        .collect::<Result<_, _>>()?;
    for (chunk, part) in (0_u64..).zip(subjects.chunks(100)) {
        let appends = part
            .iter()
            .map(|subject| put(&log, subject, Position::START, note(chunk)));
        for done in join_all(appends).await {
            done?;
        }
    }
    let tails = log.tails().await.map_err(said)?;
    let mut found: Vec<Subject> = tails
        .entries
        .into_iter()
        .map(|entry| entry.subject)
        .collect();
    found.sort();
    let mut subjects = subjects;
    subjects.sort();
    if found != subjects {
        return Err(format!("{} of {} subjects", found.len(), subjects.len()));
    }
    same("their head", &tails.up_to, &head(&log).await?)
}

pub(super) async fn tails_under_writers_miss_nothing_up_to_their_head(
    factory: &dyn Factory,
) -> Outcome {
    let log = factory.fresh().await;
    let written = async {
        let mut all: Vec<Entry> = Vec::new();
        let mut tails: BTreeMap<u64, Position> = BTreeMap::new();
        for number in 0..400_u64 {
            let which = (number * 7) % 11;
            let subject = subject(&format!("m{which}"))?;
            let tail = tails.get(&which).copied().unwrap_or_default();
            let position = put(&log, &subject, tail, note(number)).await?;
            tails.insert(which, position);
            all.push(Entry {
                position,
                subject,
                bytes: note(number),
            });
        }
        Ok::<_, String>(all)
    };
    let read = async {
        let mut reads = Vec::new();
        for _ in 0..12 {
            reads.push(log.tails().await.map_err(said)?);
            tokio::task::yield_now().await;
        }
        Ok::<_, String>(reads)
    };
    let (all, reads) = futures::future::try_join(written, read).await?;
    for tails in reads {
        let mut expected: BTreeMap<&Subject, Position> = BTreeMap::new();
        for entry in all
            .iter()
            .filter(|entry| entry.position <= tails.up_to.position)
        {
            expected.insert(&entry.subject, entry.position);
        }
        let found: BTreeMap<&Subject, Position> = tails
            .entries
            .iter()
            .map(|entry| (&entry.subject, entry.position))
            .collect();
        same(
            &format!("up to {}", tails.up_to.position),
            &found,
            &expected,
        )?;
    }
    Ok(())
}

pub(super) async fn odd_names_stay_apart(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let policies = odd_policies()?;
    for (number, policy) in (0_u64..).zip(&policies) {
        match log
            .append(&policy.subject(), Position::START, note(number))
            .await
        {
            Ok(Appended::Committed(_)) => {}
            other => return Err(format!("{policy}: {other:?}")),
        }
    }
    for (number, policy) in (0_u64..).zip(&policies) {
        let found = log
            .next_on(&policy.subject(), Position::START)
            .await
            .map_err(said)?;
        same(
            &policy.to_string(),
            &found.map(|entry| entry.bytes),
            &Some(note(number)),
        )?;
    }
    let tails = log.tails().await.map_err(said)?;
    same("subjects", &tails.entries.len(), &policies.len())?;
    let mut records = log
        .follow(super::seen(&log, 0).await?)
        .await
        .map_err(said)?;
    for policy in &policies {
        let entry = records.next().await.map_err(said)?;
        same("a followed subject", &entry.subject, &policy.subject())?;
    }
    Ok(())
}

pub(super) async fn reopening_keeps_everything(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let mut tail = Position::START;
    let mut entries = Vec::new();
    for number in 0..50 {
        let subject = subject("m")?;
        tail = put(&log, &subject, tail, note(number)).await?;
        entries.push((tail, note(number)));
    }
    let before = head(&log).await?;
    let Some(log) = factory.reopen(log).await else {
        return Ok(());
    };
    same("the head", &head(&log).await?, &before)?;
    for (position, bytes) in entries {
        let found = log
            .at(position)
            .await
            .map_err(said)?
            .map(|entry| entry.bytes);
        same("a record", &found, &Some(bytes))?;
    }
    let next = put(&log, &subject("m")?, tail, note(99)).await?;
    if next > tail {
        Ok(())
    } else {
        Err(format!("{next} came after {tail}"))
    }
}
