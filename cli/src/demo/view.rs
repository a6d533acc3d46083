//! What the demo shows: on a terminal a table that is drawn in place, elsewhere plain lines.
//!
//! Owns: the text. Never does: ask a frontend.
//!
//! On a terminal a drawing goes over the one before, line by line, so that nothing flickers. Lines that do not fit are cut by
//! the terminal (its wrapping is off meanwhile), because a wrapped one would make the count of lines wrong. Whatever else
//! was written, or a terminal that was resized, makes the next drawing start below.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use router_agent::frontend::Counts;
use scheduler::dynamo::WorkerId;

pub(crate) type Seen = BTreeMap<WorkerId, Counts>;

/// One frontend in one second.
pub(crate) struct Row<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// What its workers did.
    pub(crate) counts: Seen,
    /// What its router selects with, or why that is not known.
    pub(crate) router: Result<Live, &'static str>,
}

/// A few values that a newcomer may change, as the scheduler itself reports them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Live {
    pub(crate) temperature: f64,
    pub(crate) credit: f64,
    pub(crate) revision: u64,
}

impl Row<'_> {
    fn sum(&self, value: fn(&Counts) -> u64) -> u64 {
        self.counts.values().map(value).sum()
    }

    /// Each worker's share of the requests.
    fn shares(&self) -> Vec<(WorkerId, String)> {
        let requests = self.sum(|one| one.requests);
        let share = |(id, one): (&WorkerId, &Counts)| (*id, percent(one.requests, requests));
        self.counts.iter().map(share).collect()
    }

    fn hits(&self) -> String {
        percent(
            self.sum(|one| one.hit_blocks),
            self.sum(|one| one.prompt_blocks),
        )
    }
}

fn percent(part: u64, whole: u64) -> String {
    match (part * 100 + whole / 2).checked_div(whole) {
        Some(percent) => format!("{percent:3} %"),
        None => "  - %".to_owned(),
    }
}

/// A line that stands for itself.
fn line(row: &Row<'_>) -> String {
    let shares = row.shares().into_iter();
    let shares: Vec<String> = shares.map(|(id, share)| format!("w{id} {share}")).collect();
    let router = match row.router {
        Ok(Live {
            temperature,
            credit,
            revision,
        }) => format!("temperature {temperature}  credit {credit}  revision {revision}"),
        Err(why) => why.to_owned(),
    };
    format!(
        "{}  {}   KV hits {}   {:3}/s   {router}",
        row.name,
        shares.join("  "),
        row.hits(),
        row.sum(|one| one.requests),
    )
}

/// The same for all, under one head: at most 79 columns for four workers.
fn table(rows: &[Row<'_>]) -> Vec<String> {
    let ids = rows.iter().flat_map(|row| row.counts.keys());
    let ids: std::collections::BTreeSet<&WorkerId> = ids.collect();
    let heads: String = ids
        .iter()
        .map(|id| format!(" {:>5}", format!("w{id}")))
        .collect();
    let mut lines = vec![format!(
        "{:8}{heads}  KV hits  req/s  temperature  credit  revision",
        ""
    )];
    for row in rows {
        let shares: BTreeMap<WorkerId, String> = row.shares().into_iter().collect();
        let shares = ids
            .iter()
            .map(|id| shares.get(id).map_or("", String::as_str));
        let shares: String = shares.map(|share| format!(" {share:>5}")).collect();
        let router = match row.router {
            Ok(Live {
                temperature,
                credit,
                revision,
            }) => format!("{temperature:>11}  {credit:>6}  {revision:>8}"),
            Err(why) => why.to_owned(),
        };
        lines.push(format!(
            "{:8}{shares}  {:>7}  {:>5}  {router}",
            row.name,
            row.hits(),
            row.sum(|one| one.requests),
        ));
    }
    lines
}

/// How a drawing goes out.
pub(crate) enum View {
    /// One line per frontend after the other.
    Lines,
    /// In place.
    Table {
        /// Lines of the last drawing, directly above the cursor.
        drawn: usize,
    },
}

impl View {
    pub(crate) fn new(terminal: bool) -> View {
        if terminal {
            View::Table { drawn: 0 }
        } else {
            View::Lines
        }
    }

    /// The cursor is somewhere else than the last drawing left it.
    pub(crate) fn disturb(&mut self) {
        match self {
            View::Lines => {}
            View::Table { drawn } => *drawn = 0,
        }
    }

    /// What to write for the next drawing, in one piece.
    pub(crate) fn draw(&mut self, rows: &[Row<'_>]) -> String {
        match self {
            View::Lines => rows.iter().map(|row| line(row) + "\n").collect(),
            View::Table { drawn } => {
                let lines = table(rows);
                let mut out = String::from("\x1b[?7l\r");
                if *drawn > 0 {
                    // Writing into a string cannot fail.
                    let _ = write!(out, "\x1b[{drawn}A");
                }
                for line in &lines {
                    out.push_str(line);
                    out.push_str("\x1b[K\n");
                }
                out.push_str("\x1b[J\x1b[?7h");
                *drawn = lines.len();
                out
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, requests: [u64; 4]) -> Row<'_> {
        let counts = |(id, requests): (usize, u64)| {
            let counts = Counts {
                requests,
                prompt_blocks: requests * 10,
                hit_blocks: requests * 9,
            };
            (id as WorkerId, counts)
        };
        Row {
            name,
            counts: requests.into_iter().enumerate().map(counts).collect(),
            router: Ok(Live {
                temperature: 0.35,
                credit: 1.0,
                revision: 12,
            }),
        }
    }

    #[test]
    fn a_line_shows_shares_of_the_last_second() {
        let shown = View::new(false).draw(&[row("demo-1", [3, 1, 0, 0])]);
        let wanted = "demo-1  w0  75 %  w1  25 %  w2   0 %  w3   0 %   KV hits  90 %     4/s   temperature 0.35  credit 1  revision 12\n";
        assert_eq!(shown, wanted);
        let idle = Row {
            router: Err("the scheduler does not answer"),
            ..row("demo-1", [0; 4])
        };
        let idle = line(&idle);
        assert!(
            idle.contains("w0   - %") && idle.contains("hits   - %") && idle.ends_with("answer"),
            "{idle}"
        );
    }

    #[test]
    fn a_table_fits_into_eighty_columns() {
        let rows = [row("demo-1", [100, 0, 0, 0]), row("demo-2", [0; 4])];
        let wanted = "
            w0    w1    w2    w3  KV hits  req/s  temperature  credit  revision
demo-1   100 %   0 %   0 %   0 %     90 %    100         0.35       1        12
demo-2     - %   - %   - %   - %      - %      0         0.35       1        12";
        let shown = table(&rows);
        assert_eq!(shown.join("\n"), wanted.trim_start_matches('\n'));
        assert!(shown.iter().all(|line| line.len() < 80));
    }

    #[test]
    fn a_drawing_goes_over_the_last_one_unless_something_came_between() {
        let rows = [row("demo-1", [1; 4]), row("demo-2", [1; 4])];
        let mut view = View::new(true);
        let first = view.draw(&rows);
        assert!(!first.contains("A"), "{first:?}");
        let second = view.draw(&rows);
        assert!(second.starts_with("\x1b[?7l\r\x1b[3A"), "{second:?}");
        assert_eq!(second.matches("\x1b[K\n").count(), 3, "{second:?}");
        assert!(second.ends_with("\x1b[?7h"), "wrapping is on again");
        view.disturb();
        assert_eq!(view.draw(&rows), first);
        let shorter = view.draw(&rows[..1]);
        assert!(shorter.contains("\x1b[3A") && shorter.contains("\x1b[J"));
    }
}
