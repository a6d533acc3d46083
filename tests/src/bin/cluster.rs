//! Runs the cluster under faults: `cluster [--kills N] [--writers N] [--seed N] [--quick] [--only NAME]...`, or judges a history
//! that was kept: `cluster --history FILE`.

use std::path::Path;
use std::process::ExitCode;

use router_policy_tests::cluster::{self, Settings};
use router_policy_tests::history::{checker, recorder};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut settings = Settings {
        kills: 10,
        writers: 32,
        seed: 1,
        only: Vec::new(),
        quick: false,
    };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        let number = |text: String| text.parse::<u32>();
        let understood = match argument.as_str() {
            "--kills" => number(value()).map(|kills| settings.kills = kills),
            "--writers" => number(value()).map(|writers| settings.writers = writers as usize),
            "--seed" => number(value()).map(|seed| settings.seed = u64::from(seed)),
            "--quick" => {
                settings.quick = true;
                Ok(())
            }
            "--only" => {
                settings.only.push(value());
                Ok(())
            }
            "--history" => return judge(Path::new(&value())),
            _ => {
                eprintln!("unknown argument {argument}");
                return ExitCode::from(2);
            }
        };
        if let Err(why) = understood {
            eprintln!("{argument}: {why}");
            return ExitCode::from(2);
        }
    }
    if cluster::run(&settings) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
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
