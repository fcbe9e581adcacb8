//! How many bytes the ports of a namespace have sent.

use std::{fs::File, io, os::unix::fs::FileExt};

/// Field of a line of `/proc/net/dev`, after the name, that counts bytes sent.
const BYTES_SENT: usize = 8;
const READ_AT_ONCE: usize = 16 * 1024;

/// `/proc/net/dev` of one namespace. Whoever opened it there can read it from anywhere.
#[derive(Debug)]
pub(crate) struct Counter {
    file: File,
}

impl Counter {
    /// Of the namespace of the calling thread.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            file: File::open("/proc/thread-self/net/dev")?,
        })
    }

    /// Bytes sent so far by the ports whose names begin like this.
    pub(crate) fn sent(&self, ports: &str) -> io::Result<u64> {
        Ok(sum_sent(&self.read()?, |name| name.starts_with(ports)))
    }

    /// Bytes sent so far by each of these ports.
    pub(crate) fn sent_by(&self, ports: &[String]) -> io::Result<Vec<u64>> {
        let text = self.read()?;
        let sent = |port: &String| sum_sent(&text, |name| name == port);
        Ok(ports.iter().map(sent).collect())
    }

    fn read(&self) -> io::Result<String> {
        let mut text = Vec::new();
        let mut part = [0; READ_AT_ONCE];
        loop {
            match self.file.read_at(&mut part, text.len() as u64)? {
                0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
                n => text.extend_from_slice(&part[..n]),
            }
        }
    }
}

fn sum_sent(text: &str, is_counted: impl Fn(&str) -> bool) -> u64 {
    text.lines()
        .filter_map(|line| line.trim_start().split_once(':'))
        .filter(|(name, _)| is_counted(name))
        .filter_map(|(_, fields)| {
            fields
                .split_whitespace()
                .nth(BYTES_SENT)?
                .parse::<u64>()
                .ok()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_bytes_of_the_named_ports_are_summed() {
        let text = "Inter-|   Receive                            |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets\n\
            \u{20}   lo:     100       1    0    0    0     0          0         0      100       1\n\
            \u{20}leaf0:     200       2    0    0    0     0          0         0       30       1\n\
            \u{20}leaf1:     300       3    0    0    0     0          0         0        4       1\n";
        assert_eq!(sum_sent(text, |name| name.starts_with("leaf")), 34);
        assert_eq!(sum_sent(text, |name| name == "leaf1"), 4);
    }
}
