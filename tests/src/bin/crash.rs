//! Real crashes: `crash [--rounds N] [--seed S] [--only KIND]...`.

use std::process::ExitCode;

use router_policy_tests::crash::{KINDS, Options, run};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [probe, store, folder] = words.as_slice()
        && probe == "probe"
    {
        return if router_policy_tests::crash::probe(store, folder.as_ref()) {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(2)
        };
    }
    match options(words.into_iter()) {
        Ok(options) => {
            if run(&options) {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(words) => {
            eprintln!("{words}");
            ExitCode::from(2)
        }
    }
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        rounds: 20,
        seed: event_log::ambient::now().unix_ms(),
        only: Vec::new(),
    };
    while let Some(word) = words.next() {
        let value = words
            .next()
            .ok_or_else(|| format!("{word} needs a value"))?;
        let number = || {
            value
                .parse()
                .map_err(|_| format!("{word} {value}: no number"))
        };
        match word.as_str() {
            "--rounds" => options.rounds = number()?,
            "--seed" => options.seed = number()?,
            "--only" => {
                let known = KINDS.iter().find(|(name, _)| *name == value);
                let names = KINDS.map(|(name, _)| name).join(", ");
                let (_, kind) =
                    known.ok_or_else(|| format!("no kind {value:?}; there are {names}"))?;
                options.only.push(*kind);
            }
            _ => return Err(format!("unknown: {word}")),
        }
    }
    Ok(options)
}
