//! Appending.

use bytes::Bytes;
use futures::future::join_all;
use schemas::Position;

use super::records::{note, put, subject};
use super::{Factory, Outcome, head, said, same};
use crate::port::Appended;

pub(super) async fn the_first_record_expects_the_start(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let subject = subject("m")?;
    let early = log
        .append(&subject, Position(7), note(1))
        .await
        .map_err(said)?;
    same(
        "an expectation that is on no record",
        &early,
        &Appended::Conflict,
    )?;
    let position = put(&log, &subject, Position::START, note(1)).await?;
    if position == Position::START {
        return Err("a record stands at the start".to_owned());
    }
    let again = log
        .append(&subject, Position::START, note(2))
        .await
        .map_err(said)?;
    same("a second first record", &again, &Appended::Conflict)
}

pub(super) async fn a_stale_expectation_stores_nothing(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let subject = subject("m")?;
    let first = put(&log, &subject, Position::START, note(1)).await?;
    let second = put(&log, &subject, first, note(2)).await?;
    let stale = log.append(&subject, first, note(3)).await.map_err(said)?;
    same("the answer", &stale, &Appended::Conflict)?;
    same("the head", &head(&log).await?.position, &second)
}

pub(super) async fn subjects_are_independent(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let (one, other) = (subject("one")?, subject("other")?);
    let first = put(&log, &one, Position::START, note(1)).await?;
    let beside = put(&log, &other, Position::START, note(2)).await?;
    // The other subject's record is the log's last one, and no business of this one.
    let stale = log.append(&one, beside, note(3)).await.map_err(said)?;
    same("another subject's position", &stale, &Appended::Conflict)?;
    put(&log, &one, first, note(3)).await.map(|_| ())
}

pub(super) async fn positions_rise_over_all_subjects(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let subjects = [subject("a")?, subject("b")?, subject("c")?];
    let mut tails = [Position::START; 3];
    let mut last = Position::START;
    for number in 0..30_u64 {
        let at = usize::try_from(number % 3).unwrap_or(0);
        let position = put(&log, &subjects[at], tails[at], note(number)).await?;
        if position <= last {
            return Err(format!("{position} came after {last}"));
        }
        tails[at] = position;
        last = position;
    }
    Ok(())
}

pub(super) async fn an_identical_resend_is_a_conflict_and_stores_nothing(
    factory: &dyn Factory,
) -> Outcome {
    let log = factory.fresh().await;
    let subject = subject("m")?;
    let first = put(&log, &subject, Position::START, note(1)).await?;
    match log
        .append(&subject, Position::START, note(1))
        .await
        .map_err(said)?
    {
        // A broker that knows the record again may answer with its place.
        Appended::Conflict => {}
        Appended::Committed(position) => same("the place", &position, &first)?,
    }
    same("the head", &head(&log).await?.position, &first)
}

pub(super) async fn of_200_writers_one_wins_each_place(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let subject = subject("m")?;
    let mut tail = Position::START;
    for round in 0..3_u64 {
        let attempts =
            (0..200_u64).map(|writer| log.append(&subject, tail, note(round * 1_000 + writer)));
        let mut winners = Vec::new();
        for (writer, answer) in (0_u64..).zip(join_all(attempts).await) {
            if let Ok(Appended::Committed(position)) = answer {
                winners.push((position, note(round * 1_000 + writer)));
            }
        }
        // A broker may leave the losers, even the winner, without a verdict; the log has the last word.
        let stored = log
            .next_on(&subject, tail)
            .await
            .map_err(said)?
            .ok_or("nobody won")?;
        if let Some((position, bytes)) = winners.first() {
            same("the winner's place", position, &stored.position)?;
            same("the winner's record", bytes, &stored.bytes)?;
        }
        if winners.len() > 1 {
            return Err(format!("{} writers were told that they won", winners.len()));
        }
        let beside = log.next_on(&subject, stored.position).await.map_err(said)?;
        same("a second record", &beside, &None)?;
        tail = stored.position;
    }
    Ok(())
}

pub(super) async fn a_record_of_900_kib_is_kept_byte_for_byte(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let subject = subject("m")?;
    let text: String = ('a'..='z').cycle().take(900 * 1024).collect();
    let bytes = Bytes::from(format!("{{\"id\":\"x\",\"text\":\"{text}\"}}"));
    let position = put(&log, &subject, Position::START, bytes.clone()).await?;
    let whole = |what: &str, entry: Option<crate::port::Entry>| match entry {
        Some(entry) if entry.bytes == bytes => Ok(()),
        Some(_) => Err(format!("{what} differs")),
        None => Err(format!("{what} is missing")),
    };
    whole("at", log.at(position).await.map_err(said)?)?;
    whole(
        "next_on",
        log.next_on(&subject, Position::START).await.map_err(said)?,
    )?;
    whole("tails", log.tails().await.map_err(said)?.entries.pop())?;
    let seen = super::seen(&log, 0).await?;
    let mut records = log.follow(seen).await.map_err(said)?;
    whole("follow", Some(records.next().await.map_err(said)?))
}

pub(super) async fn bytes_that_are_no_text_are_kept(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let subject = subject("m")?;
    let mut tail = Position::START;
    for bytes in [&b""[..], b"\0", b"\xff\xfe\r\n", b"{ \"id\" : 1 }\n"] {
        let bytes = Bytes::copy_from_slice(bytes);
        tail = put(&log, &subject, tail, bytes.clone()).await?;
        let entry = log.at(tail).await.map_err(said)?.ok_or("it is missing")?;
        same("the bytes", &entry.bytes, &bytes)?;
    }
    Ok(())
}
