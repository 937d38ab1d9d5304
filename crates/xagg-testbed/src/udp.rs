//! What a node's network stack has counted of UDP.

use std::io;

use crate::namespace::Node;
use crate::shell::ShellError;

/// UDP datagrams that no program has got, over IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpErrors {
    /// Their checksum was wrong.
    pub checksum: u64,
    /// Their socket's buffer was full.
    pub buffer: u64,
}

impl Node {
    /// The UDP datagrams that the node's network stack has dropped.
    ///
    /// # Errors
    /// What the system says.
    pub fn udp_errors(&self) -> Result<UdpErrors, ShellError> {
        let failed =
            |reason| ShellError::System { what: format!("reading the counters of {}", self.name()), reason };
        let table = self.enter(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).map_err(failed)?;
        UdpErrors::parse(&table).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
    }
}

impl UdpErrors {
    /// Reads the two lines of `/proc/net/snmp` that are about UDP: names, then numbers.
    fn parse(table: &str) -> Option<Self> {
        let mut lines = table.lines().filter_map(|line| line.strip_prefix("Udp:"));
        let (names, numbers) = (lines.next()?, lines.next()?);
        let number = |wanted| {
            let place = names.split_whitespace().position(|name| name == wanted)?;
            numbers.split_whitespace().nth(place)?.parse().ok()
        };
        Some(Self { checksum: number("InCsumErrors")?, buffer: number("RcvbufErrors")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Tcp: RtoAlgorithm InCsumErrors
Tcp: 1 77
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
Udp: 10 2 3 4 5 6 7 8 9
UdpLite: InDatagrams RcvbufErrors InCsumErrors
UdpLite: 0 0 0
";

    #[test]
    fn numbers_are_found_under_their_names() {
        assert_eq!(UdpErrors::parse(TABLE), Some(UdpErrors { checksum: 7, buffer: 5 }));
    }

    #[test]
    fn what_is_not_there_is_not_counted_as_nothing() {
        assert_eq!(UdpErrors::parse(""), None);
        assert_eq!(UdpErrors::parse(&TABLE.replace("RcvbufErrors", "Others")), None);
        assert_eq!(UdpErrors::parse(&TABLE.replace(" 7 8 9", "")), None);
    }
}
