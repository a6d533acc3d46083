//! Committing on this log through faults.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use schemas::{CommandId, Position, Subject};

use super::records::{command, note, put, subject};
use super::{Factory, Outcome, head, said, same};
use crate::commit::{CommitError, commit};
use crate::faulty::{AppendFault, Faulty, Rates};
use crate::port::{EventLog, Failure};

const DEADLINE: Duration = Duration::from_secs(5);

/// How often a command stands on a subject.
async fn occurrences(
    log: &Arc<dyn EventLog>,
    subject: &Subject,
    bytes: &Bytes,
) -> Result<usize, String> {
    let (mut count, mut after) = (0, Position::START);
    while let Some(entry) = log.next_on(subject, after).await.map_err(said)? {
        count += usize::from(entry.bytes == *bytes);
        after = entry.position;
    }
    Ok(count)
}

pub(super) async fn commit_finds_its_record_whatever_was_lost(factory: &dyn Factory) -> Outcome {
    use AppendFault::{ConflictWithItself, Delay, LostAcknowledgement, LostRequest, Refused};
    let log = factory.fresh().await;
    let faulty = Faulty::new(log.clone());
    let subject = subject("m")?;
    let mut tail = Position::START;
    let scripts: &[&[AppendFault]] = &[
        &[],
        &[LostAcknowledgement],
        &[LostRequest],
        &[LostRequest, LostRequest, LostAcknowledgement],
        &[ConflictWithItself],
        &[LostRequest, Refused],
        &[LostAcknowledgement, Refused],
        &[Delay(Duration::from_millis(20))],
    ];
    for (number, script) in (0_u64..).zip(scripts) {
        faulty.heal();
        faulty.script(script.iter().copied());
        faulty.refuse_reads(usize::from(number % 2 == 1));
        let bytes = note(number);
        let committed = commit(
            &faulty,
            &subject,
            tail,
            bytes.clone(),
            command(number),
            DEADLINE,
        )
        .await
        .map_err(|why| format!("{script:?}: {why:?}"))?;
        let stored = log.at(committed.position).await.map_err(said)?;
        same(
            &format!("{script:?}"),
            &stored.map(|entry| entry.bytes),
            &Some(bytes.clone()),
        )?;
        same("copies", &occurrences(&log, &subject, &bytes).await?, &1)?;
        tail = committed.position;
    }
    faulty.heal();
    faulty.script([Refused]);
    match commit(&faulty, &subject, tail, note(99), command(99), DEADLINE).await {
        Err(CommitError::Determinate(_)) => same("the head", &head(&log).await?.position, &tail),
        other => Err(format!("a refusal without any doubt: {other:?}")),
    }
}

pub(super) async fn a_late_write_is_attributed(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let faulty = Faulty::new(log.clone());
    let subject = subject("m")?;
    // Its caller is told "unknown", and it lands only then.
    faulty.script([AppendFault::LateLanding]);
    let first = faulty.append(&subject, Position::START, note(1)).await;
    if !matches!(first, Err(Failure::Indeterminate(_))) {
        return Err(format!("{first:?}"));
    }
    faulty
        .land_late()
        .await
        .ok_or("nothing landed")?
        .map_err(said)?;
    let committed = commit(
        &faulty,
        &subject,
        Position::START,
        note(1),
        command(1),
        DEADLINE,
    )
    .await
    .map_err(|why| format!("{why:?}"))?;
    same("copies", &occurrences(&log, &subject, &note(1)).await?, &1)?;
    // The other way round: the retry lands first, and the late one must not.
    faulty.script([AppendFault::LateLanding]);
    let again = commit(
        &faulty,
        &subject,
        committed.position,
        note(2),
        command(2),
        DEADLINE,
    )
    .await
    .map_err(|why| format!("{why:?}"))?;
    // Whether it is refused or known again, nothing may come of it.
    let _ = faulty.land_late().await;
    same("copies", &occurrences(&log, &subject, &note(2)).await?, &1)?;
    same("the head", &head(&log).await?.position, &again.position)
}

pub(super) async fn a_lost_race_is_a_conflict_with_the_winner(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let faulty = Faulty::new(log.clone());
    let subject = subject("m")?;
    let winner = put(&log, &subject, Position::START, note(1)).await?;
    for script in [
        vec![],
        vec![AppendFault::LostRequest],
        vec![AppendFault::LateLanding],
    ] {
        faulty.script(script);
        match commit(
            &faulty,
            &subject,
            Position::START,
            note(2),
            command(2),
            DEADLINE,
        )
        .await
        {
            Err(CommitError::Conflict { actual }) => same("the winner", &actual, &Some(winner))?,
            other => return Err(format!("{other:?}")),
        }
    }
    let _ = faulty.land_late().await;
    same("copies", &occurrences(&log, &subject, &note(2)).await?, &0)
}

pub(super) async fn faults_from_seeds_never_store_twice_nor_lose(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let faulty = Faulty::new(log.clone());
    let mut number = 0;
    for seed in 0..4 {
        let rates = Rates {
            append: 60,
            read: 30,
            landing: 30,
        };
        faulty.seed(seed, rates);
        let subject = subject(&format!("m{seed}"))?;
        let mut told: BTreeMap<CommandId, Told> = BTreeMap::new();
        let mut tail = Position::START;
        for _ in 0..15 {
            number += 1;
            let outcome = commit(
                &faulty,
                &subject,
                tail,
                note(number),
                command(number),
                DEADLINE,
            )
            .await;
            let outcome = match outcome {
                Ok(committed) => {
                    tail = committed.position;
                    Told::Committed(committed.position)
                }
                Err(CommitError::Conflict { actual }) => {
                    tail = actual.unwrap_or(tail);
                    Told::NotStored
                }
                Err(CommitError::Determinate(_) | CommitError::Foreign(_)) => Told::NotStored,
                Err(CommitError::Indeterminate(_)) => Told::Unknown,
            };
            told.insert(command(number), outcome);
        }
        faulty.heal();
        while faulty.land_late().await.is_some() {}
        judge(&log, &subject, &told).await?;
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Committed(Position),
    NotStored,
    Unknown,
}

async fn judge(
    log: &Arc<dyn EventLog>,
    subject: &Subject,
    told: &BTreeMap<CommandId, Told>,
) -> Outcome {
    let mut stored: BTreeMap<CommandId, Vec<Position>> = BTreeMap::new();
    let mut after = Position::START;
    while let Some(entry) = log.next_on(subject, after).await.map_err(said)? {
        after = entry.position;
        let id =
            migrations::record::command_id(&entry.bytes).ok_or("a record without a command")?;
        stored.entry(id).or_default().push(after);
    }
    for (id, told) in told {
        let places = stored.get(id).cloned().unwrap_or_default();
        let right = match told {
            Told::Committed(position) => places == [*position],
            Told::NotStored => places.is_empty(),
            Told::Unknown => places.len() <= 1,
        };
        if !right {
            return Err(format!("{id} was told {told:?} and stands at {places:?}"));
        }
    }
    Ok(())
}
