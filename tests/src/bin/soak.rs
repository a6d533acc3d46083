//! A soak: `soak [--minutes N] [--seed S] [--cluster yes] [--calm yes]`.

use std::process::ExitCode;

use router_policy_tests::soak::{Options, run};

fn main() -> ExitCode {
    match options(std::env::args().skip(1)) {
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
        minutes: 1.0,
        seed: event_log::ambient::now().unix_ms(),
        cluster: false,
        calm: false,
    };
    while let Some(word) = words.next() {
        let value = words
            .next()
            .ok_or_else(|| format!("{word} needs a value"))?;
        let wrong = format!("{word} {value}: no number");
        match word.as_str() {
            "--minutes" => options.minutes = value.parse().map_err(|_| wrong)?,
            "--seed" => options.seed = value.parse().map_err(|_| wrong)?,
            "--cluster" => options.cluster = value == "yes",
            "--calm" => options.calm = value == "yes",
            _ => return Err(format!("unknown: {word}")),
        }
    }
    Ok(options)
}
