//! Runs the cluster under faults: `cluster [--kills=N] [--writers=N] [--seed=N] [--quick] [--only=NAME]...`, or judges a history
//! that was kept: `cluster --history=FILE`.

use std::path::Path;
use std::process::ExitCode;

use router_policy_tests::cluster::{self, Settings};
use router_policy_tests::history::{checker, recorder};

fn main() -> ExitCode {
    match arguments() {
        Ok(Asked::Run(settings)) if cluster::run(&settings) => ExitCode::SUCCESS,
        Ok(Asked::Run(_)) => ExitCode::FAILURE,
        Ok(Asked::Judge(path)) => judge(Path::new(&path)),
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

enum Asked {
    Run(Settings),
    Judge(String),
}

fn arguments() -> Result<Asked, String> {
    let mut settings = Settings {
        kills: 10,
        writers: 32,
        seed: 1,
        only: Vec::new(),
        quick: false,
    };
    for argument in std::env::args().skip(1) {
        let (name, value) = argument.split_once('=').unwrap_or((&argument, ""));
        let number = || {
            value
                .parse::<u32>()
                .map_err(|why| format!("{argument}: {why}"))
        };
        match name {
            "--kills" => settings.kills = number()?,
            "--writers" => settings.writers = number()? as usize,
            "--seed" => settings.seed = u64::from(number()?),
            "--quick" => settings.quick = true,
            "--only" => settings.only.push(value.to_owned()),
            "--history" => return Ok(Asked::Judge(value.to_owned())),
            _ => return Err(format!("unknown argument {argument}")),
        }
    }
    let names: Vec<&str> = cluster::cases::ALL.iter().map(|case| case.name).collect();
    let known = |only: &String| names.iter().any(|name| name.contains(only.as_str()));
    match settings.only.iter().find(|only| !known(only)) {
        Some(unknown) => Err(format!(
            "no fault {unknown:?}; there are {}",
            names.join(", ")
        )),
        None => Ok(Asked::Run(settings)),
    }
}

fn judge(path: &Path) -> ExitCode {
    match recorder::read(path).map(|history| checker::check(&history)) {
        Ok(Ok(judged)) => {
            println!("possible: {judged:?}");
            ExitCode::SUCCESS
        }
        Ok(Err(why)) => {
            println!("impossible: {why}");
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("{}: {why}", path.display());
            ExitCode::from(2)
        }
    }
}
