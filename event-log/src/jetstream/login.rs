//! What a URL says of who connects.

/// User and password, or a token alone, of the first server that has them.
pub(super) fn login(urls: &str) -> Option<(String, Option<String>)> {
    urls.split(',').find_map(|url| {
        let (_, rest) = url.split_once("://")?;
        let (login, _) = rest.rsplit_once('@')?;
        Some(match login.split_once(':') {
            Some((user, password)) => (unescape(user), Some(unescape(password))),
            None => (unescape(login), None),
        })
    })
}

/// Undoes `%XX`; anything else stays.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let byte = tail
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_taken_from_urls() {
        for (urls, expected) in [
            ("nats://a:1", None),
            ("nats://u:p@a:1", Some(("u", Some("p")))),
            (
                "nats://a:1,nats://u:p%40%3a%@b:1",
                Some(("u", Some("p@:%"))),
            ),
            ("tls://token@a", Some(("token", None))),
        ] {
            let found = login(urls);
            let found = found
                .as_ref()
                .map(|(user, password)| (user.as_str(), password.as_deref()));
            assert_eq!(found, expected, "{urls}");
        }
    }
}
