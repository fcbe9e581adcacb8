//! A limit on the connections of callers whose identity is not known yet.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
};

use tokio::task::AbortHandle;

/// So many connections at a time. One more ends the oldest of the address that has the most: a caller who holds or
/// opens many connections ends only its own.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    max: usize,
    /// The tasks that serve them, the oldest first.
    connections: VecDeque<(IpAddr, AbortHandle)>,
}

impl ConnectionLimit {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            connections: VecDeque::new(),
        }
    }

    /// Adds a connection; true if another one was ended for it.
    pub(crate) fn add(&mut self, from: IpAddr, connection: AbortHandle) -> bool {
        self.connections
            .retain(|(_, connection)| !connection.is_finished());
        self.connections
            .push_back((from.to_canonical(), connection));
        if self.connections.len() <= self.max {
            return false;
        }
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for (address, _) in &self.connections {
            *counts.entry(*address).or_default() += 1;
        }
        let most = counts.values().max();
        let mut addresses = self.connections.iter().map(|(address, _)| address);
        let ended = addresses.position(|address| counts.get(address) == most);
        if let Some((_, connection)) = ended.and_then(|at| self.connections.remove(at)) {
            connection.abort();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn an_address_with_many_connections_ends_its_own_and_none_of_another() {
        let [one, many]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let mut limit = ConnectionLimit::new(4);
        let probe = tokio::spawn(pending::<()>());
        assert!(!limit.add(one, probe.abort_handle()));
        let mut others: VecDeque<_> = (0..3).map(|_| tokio::spawn(pending::<()>())).collect();
        for other in &others {
            assert!(!limit.add(many, other.abort_handle()));
        }
        for _ in 0..100 {
            let other = tokio::spawn(pending::<()>());
            assert!(limit.add(many, other.abort_handle()));
            others.push_back(other);
            let oldest = others.pop_front().unwrap();
            assert!(oldest.await.unwrap_err().is_cancelled());
        }
        assert!(!probe.is_finished());
        // An address that comes later finds room, too.
        let later = tokio::spawn(pending::<()>());
        assert!(limit.add("10.0.0.3".parse().unwrap(), later.abort_handle()));
        assert!(
            others
                .pop_front()
                .unwrap()
                .await
                .unwrap_err()
                .is_cancelled()
        );
        assert!(!probe.is_finished() && !later.is_finished());
    }
}
