//! What people write on command lines and in the environment: refused or taken, never a panic, and no password in any message.

use clap::Parser as _;
use event_log::LogUrl;
use router_agent::{DynamoHttp, Timeouts};
use schemas::{AgentId, Timestamp};

use crate::assignment::{Assignment, kind_of};
use crate::cli::Arguments;

const PASSWORD: &str = "s3cr3tw0rd";

/// The input as each kind of argument, as arguments of the binary (one a line), and around a password in a URL.
pub(crate) fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(url) = text.parse::<LogUrl>() {
        // What is shown is again a place, and the same one unless a password was left out.
        let shown = url.to_string();
        if !shown.contains("***@") && !text.contains('\u{fffd}') {
            assert_eq!(shown.parse::<LogUrl>().as_ref(), Ok(&url), "{shown:?}");
        }
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        assert_eq!(time.to_string().parse::<Timestamp>(), Ok(time), "{text:?}");
    }
    if let Ok(assignment) = text.parse::<Assignment>() {
        let _ = kind_of(&[assignment]);
    }
    let _ = text.parse::<AgentId>();
    let arguments = std::iter::once("router-policy").chain(text.split('\n').take(24));
    if let Err(why) = Arguments::try_parse_from(arguments) {
        let _ = why.to_string();
    }
    password(&text);
}

fn password(text: &str) {
    let mut pieces = text.split('\n');
    let mut next = || pieces.next().unwrap_or_default();
    let (scheme, user, more, host) = (next(), next(), next(), next());
    // What stands behind a scheme of its own is another server.
    if [scheme, user, more, host]
        .iter()
        .any(|piece| piece.contains("://"))
    {
        return;
    }
    let url = format!("{scheme}://{user}:{PASSWORD}{more}@{host}");
    // A folder may be called whatever it likes.
    if url.trim().starts_with("embedded") {
        return;
    }
    let shown = match url.parse::<LogUrl>() {
        Ok(parsed) => format!("{parsed} {parsed:?}"),
        Err(why) => format!("{why} {why:?}"),
    };
    assert!(!shown.contains(PASSWORD), "{url:?}: {shown}");
    let shown = match DynamoHttp::new(&url, Timeouts::default()) {
        Ok(frontend) => frontend.url().to_owned(),
        Err(why) => format!("{why} {why:?}"),
    };
    assert!(!shown.contains(PASSWORD), "{url:?}: {shown}");
}
