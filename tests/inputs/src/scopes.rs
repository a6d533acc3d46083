//! Scopes as subjects: decoding any text never panics, and takes only what encoding makes; encoding any scope can be undone,
//! so two scopes never share a subject.

use schemas::scope::Address;
use schemas::{Endpoint, Name, PolicyKey, PolicyKind, Scope, Subject, WorkerType};

/// The input as a subject, as it is; and as the names of a scope, separated by newlines.
pub(crate) fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let subject = Subject::from_log(&text);
    if let Some(Address::Policy(key)) = subject.address() {
        assert_eq!(key.subject(), subject, "two subjects for one policy");
    }
    let _ = text.parse::<Endpoint>().map(|endpoint| {
        assert_eq!(endpoint.to_string(), text);
    });

    let (selector, names) = text.split_at_checked(1).unwrap_or_default();
    let selector = selector.bytes().next().unwrap_or_default();
    let mut names = names.split('\n').map(|name| Name::new(name).ok());
    let mut next = || names.next().flatten();
    let model = next();
    let group = next();
    let endpoint = match (next(), next(), next()) {
        (Some(namespace), Some(component), Some(endpoint)) => Some(Endpoint {
            namespace,
            component,
            endpoint,
        }),
        _ => None,
    };
    let scope = Scope {
        model,
        worker_type: WorkerType::ALL.get(usize::from(selector) % 5).copied(),
        endpoint,
        group,
    };
    for kind in [PolicyKind::WorkerSelection, PolicyKind::BusyThreshold] {
        let scope = scope.clone();
        let key = PolicyKey { kind, scope };
        let subject = key.subject();
        assert_eq!(subject.address(), Some(Address::Policy(key.clone())));
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=.".contains(&byte);
        assert!(subject.as_str().bytes().all(plain), "{subject}");
        assert!(subject.as_str().len() < 3_800, "{subject}");
        let json = serde_json::to_vec(&key).expect("a key encodes");
        let read: PolicyKey = serde_json::from_slice(&json).expect("and decodes");
        assert_eq!(read, key);
    }
    if let Some(endpoint) = &scope.endpoint {
        assert_eq!(endpoint.to_string().parse().as_ref(), Ok(endpoint));
    }
}
