//! Soft-RoCE, the kernel's RDMA device in software, in a virtual machine: `hack/soft-roce.sh`.

use std::process::Command;

use super::BenchError;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hack/soft-roce.sh");

/// What `ib_write_bw` reaches by writes of so many bytes, GB/s.
pub(super) fn rate(bytes: usize) -> Result<f64, BenchError> {
    let output = Command::new(SCRIPT).arg(bytes.to_string()).output();
    let output = output.map_err(BenchError::system(SCRIPT))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    figure(&printed, bytes).ok_or_else(|| BenchError::Program {
        program: SCRIPT.to_owned(),
        message: format!("{printed}{}", String::from_utf8_lossy(&output.stderr)),
    })
}

fn figure(printed: &str, bytes: usize) -> Option<f64> {
    let (size, rate) = printed.trim().split_once(' ')?;
    let rate = rate.parse().ok()?;
    (size == bytes.to_string() && rate > 0.0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_the_line_of_its_size() {
        assert_eq!(figure("65536 0.03875\n", 65_536), Some(0.038_75));
        assert_eq!(figure("1048576 0.03\n", 65_536), None);
        assert_eq!(figure("65536 0\n", 65_536), None);
        assert_eq!(figure("", 65_536), None);
    }
}
