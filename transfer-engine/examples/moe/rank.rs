//! A rank: it dispatches its tokens, runs its experts, and combines what comes back.

use std::iter::repeat_n;

use weft_transfer_engine::{
    MemoryRegion, MrDescriptor, Operation, Options, SingleWrite, TransferEngine,
};

use crate::Result;
use crate::buffers::{
    Buffers, PRIVATE_ROWS, ROUTES_BYTES, ROW_BYTES, ROWS, ROWS_MAX, Table, place, read, read_row,
    remainder, rows, write_row,
};
use crate::model::{EXPERTS, EXPERTS_PER_RANK, HIDDEN, RANKS, TOP_K, Token, run_expert};

/// What a message is for; with the round it makes the immediate.
#[derive(Clone, Copy)]
enum Kind {
    Routes,
    Rows,
    Results,
}

impl Kind {
    fn immediate(self, round: usize) -> u32 {
        (round * 3) as u32 + self as u32
    }
}

pub(crate) struct Rank<'a> {
    number: usize,
    engine: &'a TransferEngine,
    here: Buffers<MemoryRegion>,
    /// Of all ranks; this one is one of them.
    there: &'a [Buffers<MrDescriptor>],
    /// What this rank sends: its routes, its rows, and the results of the rows that it gets.
    routes: MemoryRegion,
    rows: MemoryRegion,
    results: MemoryRegion,
}

/// What a rank has after a round.
pub(crate) struct Combined {
    /// Its tokens as their experts have changed them.
    pub(crate) tokens: Vec<Vec<f32>>,
    /// Rows that went ahead of the routes.
    pub(crate) rows_ahead: usize,
}

/// What a rank knows in a round.
struct Round {
    number: usize,
    /// For each row that this rank sends: its token, and for which of the token's experts it is.
    copies: Vec<(usize, usize)>,
    table: Table,
    /// Until they have ended, the bytes that they send stay as they are.
    scatters: Vec<Operation>,
}

impl<'a> Rank<'a> {
    pub(crate) fn new(
        number: usize,
        engine: &'a TransferEngine,
        here: Buffers<MemoryRegion>,
        there: &'a [Buffers<MrDescriptor>],
    ) -> Result<Self> {
        let alloc = |bytes: usize| engine.alloc(bytes as u64).map(|(region, _)| region);
        Ok(Self {
            number,
            engine,
            here,
            there,
            routes: alloc(ROUTES_BYTES)?,
            rows: alloc(ROWS * ROW_BYTES)?,
            results: alloc(ROWS_MAX * ROW_BYTES)?,
        })
    }

    /// Runs a round.
    pub(crate) fn run(&self, number: usize, tokens: &[Token]) -> Result<Combined> {
        let mut round = self.dispatch(number, tokens)?;
        self.compute(&mut round)?;
        let tokens = self.combine(&round, tokens)?;
        for scatter in round.scatters {
            scatter.wait().into_result()?;
        }
        let rows = (0..RANKS).map(|to| rows(&round.table, self.number, to).len());
        Ok(Combined {
            tokens,
            rows_ahead: rows.map(|rows| rows.min(PRIVATE_ROWS)).sum(),
        })
    }

    /// Sends the tokens to their experts, and waits for the rows of the experts here.
    fn dispatch(&self, number: usize, tokens: &[Token]) -> Result<Round> {
        let me = self.number;
        let copies = (0..tokens.len()).flat_map(|token| (0..TOP_K).map(move |k| (token, k)));
        let mut copies: Vec<_> = copies.collect();
        copies.sort_by_key(|&(token, k)| tokens[token].experts[k]);
        let mut table = [[0; EXPERTS]; RANKS];
        for (row, &(token, k)) in copies.iter().enumerate() {
            table[me][tokens[token].experts[k]] += 1;
            write_row(&self.rows, row, &tokens[token].hidden)?;
        }
        let mut round = Round {
            number,
            copies,
            table,
            scatters: Vec::new(),
        };

        // The routes, and at once the first rows: for these it is enough that a rank knows its own routes.
        let routes = table[me].map(u32::to_le_bytes);
        self.routes.write(0, routes.as_flattened())?;
        self.scatter(&mut round, Kind::Routes, |_, to| Part {
            from: (&self.routes, 0),
            to: (&self.there[to].routes, place(number, me) * ROUTES_BYTES),
            bytes: ROUTES_BYTES,
        })?;
        self.scatter(&mut round, Kind::Rows, |table, to| {
            let mine = rows(table, me, to);
            Part {
                from: (&self.rows, mine.start * ROW_BYTES),
                to: (
                    &self.there[to].private,
                    place(number, me) * PRIVATE_ROWS * ROW_BYTES,
                ),
                bytes: mine.len().min(PRIVATE_ROWS) * ROW_BYTES,
            }
        })?;

        // The table says where the other rows go.
        self.wait(number, Kind::Routes, RANKS)?;
        for (sender, routes) in round.table.iter_mut().enumerate() {
            let offset = place(number, sender) * ROUTES_BYTES;
            *routes = read(&self.here.routes, offset)?.map(u32::from_le_bytes);
        }
        self.scatter(&mut round, Kind::Rows, |table, to| {
            let mine = rows(table, me, to);
            let before = (0..me).map(|sender| remainder(&rows(table, sender, to)));
            Part {
                from: (&self.rows, (mine.start + PRIVATE_ROWS) * ROW_BYTES),
                to: (&self.there[to].shared, before.sum::<usize>() * ROW_BYTES),
                bytes: remainder(&mine) * ROW_BYTES,
            }
        })?;

        // A sender has written once, twice or not at all.
        let theirs = (0..RANKS).map(|sender| rows(&round.table, sender, me));
        let writes = theirs.map(|it| usize::from(!it.is_empty()) + usize::from(remainder(&it) > 0));
        self.wait(number, Kind::Rows, writes.sum())?;
        Ok(round)
    }

    /// Has the experts here compute their rows, sender by sender, and scatters the results.
    fn compute(&self, round: &mut Round) -> Result<()> {
        let me = self.number;
        let (mut results, mut shared) = (0, 0);
        let mut firsts = [0; RANKS];
        for (sender, first) in firsts.iter_mut().enumerate() {
            *first = results;
            let experts = me * EXPERTS_PER_RANK..(me + 1) * EXPERTS_PER_RANK;
            let counts = experts.map(|expert| (expert, round.table[sender][expert] as usize));
            let expert_of_row = counts.flat_map(|(expert, rows)| repeat_n(expert, rows));
            for (index, expert) in expert_of_row.enumerate() {
                let row = if index < PRIVATE_ROWS {
                    let first = place(round.number, sender) * PRIVATE_ROWS;
                    read_row(&self.here.private, first + index)?
                } else {
                    shared += 1;
                    read_row(&self.here.shared, shared - 1)?
                };
                write_row(&self.results, results, &run_expert(expert, &row))?;
                results += 1;
            }
        }
        self.scatter(round, Kind::Results, |table, sender| {
            let theirs = rows(table, sender, me);
            Part {
                from: (&self.results, firsts[sender] * ROW_BYTES),
                to: (&self.there[sender].results, theirs.start * ROW_BYTES),
                bytes: theirs.len() * ROW_BYTES,
            }
        })
    }

    /// Waits for the results, which lie as the rows do, and combines those of each token.
    fn combine(&self, round: &Round, tokens: &[Token]) -> Result<Vec<Vec<f32>>> {
        let answers = (0..RANKS).filter(|to| !rows(&round.table, self.number, *to).is_empty());
        self.wait(round.number, Kind::Results, answers.count())?;
        let mut results = vec![[[0.0; HIDDEN]; TOP_K]; tokens.len()];
        for (row, &(token, k)) in round.copies.iter().enumerate() {
            results[token][k] = read_row(&self.here.results, row)?;
        }
        let combined = tokens.iter().zip(&results);
        Ok(combined
            .map(|(token, results)| token.combine(results))
            .collect())
    }

    /// Submits a write to each rank, those of no bytes left out.
    fn scatter<'b>(
        &self,
        round: &mut Round,
        kind: Kind,
        part: impl Fn(&Table, usize) -> Part<'b>,
    ) -> Result<()> {
        let parts = (0..RANKS).map(|to| part(&round.table, to));
        let parts = parts.filter(|part| part.bytes > 0);
        let writes = parts.map(|part| SingleWrite {
            source: (part.from.0.clone(), part.from.1 as u64),
            destination: (part.to.0.clone(), part.to.1 as u64),
            bytes: part.bytes as u64,
            immediate: Some(kind.immediate(round.number)),
        });
        let writes: Vec<_> = writes.collect();
        if !writes.is_empty() {
            let scatter = self.engine.submit_scatter(&writes, Options::default())?;
            round.scatters.push(scatter);
        }
        Ok(())
    }

    /// Waits until all messages of a kind are here. The counter ends: no more come.
    fn wait(&self, round: usize, kind: Kind, messages: usize) -> Result<()> {
        let immediate = kind.immediate(round);
        let options = Options::default();
        let here = self
            .engine
            .expect_imm_count(immediate, messages as u64, options)?;
        here.wait().into_result()?;
        self.engine.free_imm(immediate);
        Ok(())
    }
}

/// A write of a scatter: memory and offset from and to.
struct Part<'a> {
    from: (&'a MemoryRegion, usize),
    to: (&'a MrDescriptor, usize),
    bytes: usize,
}
