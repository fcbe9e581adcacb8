//! Which spine each path crosses, by the kernel's own answer for its port pair.

use weft_engine::PortRange;
use weft_fabric::Fabric;
use weft_link::PortPair;

use super::BenchError;
use super::spine::run_inside;

/// The spine of each of the `paths` from node 0 to node 1, which hang on different leaves.
pub(super) fn spines_of_paths(
    fabric: &Fabric,
    ports: PortRange,
    paths: u16,
) -> Result<Vec<usize>, BenchError> {
    let (from, to) = (fabric.node(0), fabric.node(1));
    let queries: String = (0..paths)
        .map(|path| {
            let pair = PortPair::of_path(path as u8, ports.count, ports.count);
            format!(
                "route get {} from {} iif {} ipproto udp sport {} dport {}\n",
                to.data_address,
                from.data_address,
                from.name,
                ports.port(pair.local),
                ports.port(pair.remote)
            )
        })
        .collect();
    let leaf = from.namespace.with_file_name(format!("leaf{}", from.leaf));
    let answers = run_inside(&leaf, "ip", &["-batch", "-"], &queries)?;
    let spines: Vec<usize> = answers.lines().filter_map(spine_of_route).collect();
    if spines.len() != usize::from(paths) {
        let message = format!("{} answers for {paths} paths: {answers}", spines.len());
        return Err(BenchError::Program {
            program: "ip route get".into(),
            message,
        });
    }
    Ok(spines)
}

fn spine_of_route(line: &str) -> Option<usize> {
    let (_, device) = line.split_once(" dev spine")?;
    device.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spine_is_read_from_the_device_of_the_route() {
        let route = "10.87.1.10 from 10.87.0.10 via 10.88.3.2 dev spine3 ";
        assert_eq!(spine_of_route(route), Some(3));
        assert_eq!(spine_of_route("    cache iif node0 "), None);
    }
}
