//! Lines of the log over HTTP: a reader takes whatever a service sends without a panic, the same however it is cut into
//! pieces; and whatever is in a log, the line that a service makes of it reads back byte for byte.

use std::cell::RefCell;

use bytes::Bytes;
use event_log::http::read_stream;
use event_log::{Entry, Failure};
use schemas::event::record_hash;
use schemas::state::Verdict;
use schemas::{Hash, Position, Subject};
use service::http::log::line;
use service::projection::store::StoredRecord;
use tokio::runtime::Runtime;

thread_local! {
    static RUNTIME: RefCell<Runtime> = RefCell::new(
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime"),
    );
}

/// The first byte says where to cut; the rest is a stream, and a record.
pub(crate) fn check(input: &[u8]) {
    let Some((cut, stream)) = input.split_first() else {
        return;
    };
    let whole = read(vec![Bytes::copy_from_slice(stream)]);
    let size = usize::from(*cut).max(1);
    let pieces = stream.chunks(size).map(Bytes::copy_from_slice).collect();
    assert_eq!(read(pieces), whole, "cut every {size} bytes");

    let (subject, record) = match stream.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&stream[..at], &stream[at + 1..]),
        None => (&b""[..], stream),
    };
    let subject = Subject::from_log(&String::from_utf8_lossy(subject));
    let mut sent = serde_json::to_vec(&line(StoredRecord {
        position: Position(7),
        verdict: Verdict::Accepted { chained: true },
        hash: record_hash(&subject, record),
        chain: Hash::ZERO,
        subject: subject.clone(),
        bytes: record.to_vec(),
    }))
    .expect("a line encodes");
    assert!(!sent.contains(&b'\n'), "a line is one line");
    sent.push(b'\n');
    let entry = Entry {
        position: Position(7),
        subject,
        bytes: Bytes::copy_from_slice(record),
    };
    assert_eq!(read(vec![sent.into()]), [Ok(Some(entry))]);
}

fn read(pieces: Vec<Bytes>) -> Vec<Result<Option<Entry>, String>> {
    let words = |why: Failure| why.to_string();
    let read = RUNTIME.with_borrow(|runtime| runtime.block_on(read_stream(pieces)));
    read.into_iter().map(|one| one.map_err(words)).collect()
}
