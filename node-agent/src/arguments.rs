//! The command line: a configuration file, or where to get one.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Parser};
use weft_agent::config::Objects;
use weft_agent::config::values::{FabricName, NodeName};
use weft_agent::enroll::{Settings, Timing};
use weft_agent::object::{AllowedPrefix, Authorities, ProxyUrl, WorkloadIdentity};

/// The node agent of Weft: moves files between nodes for an operator or for `weft play`.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Arguments {
    /// The configuration file (YAML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration, its certificates and its roots, and exit.
    #[arg(long, requires = "config")]
    pub(crate) check_config: bool,
    /// Log as JSON, one object a line.
    #[arg(long)]
    pub(crate) log_json: bool,
    /// What to log, for example `info` or `weft_agent=debug,weft_engine=info`.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub(crate) log: String,
    #[command(flatten)]
    enroll: Enroll,
}

/// Instead of a file: what to ask the operator of a cluster for it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Instead of --config")]
struct Enroll {
    /// The operator.
    #[arg(long, value_name = "HOST:PORT", env = "WEFT_OPERATOR")]
    operator: Option<String>,
    /// PEM of the authorities that the operator's certificate may be of.
    #[arg(long, value_name = "FILE", env = "WEFT_OPERATOR_CA")]
    operator_ca: Option<PathBuf>,
    /// The token that says which node this is.
    #[arg(long, value_name = "FILE", env = "WEFT_TOKEN")]
    token: Option<PathBuf>,
    /// The fabric to join.
    #[arg(long, env = "WEFT_FABRIC")]
    fabric: Option<FabricName>,
    /// Names what the pod is made for: NodeConfig.pod_configuration of its template.
    #[arg(long, value_name = "HASH", default_value = "")]
    pod_configuration: String,
    /// This node's name.
    #[arg(long, env = "NODE_NAME")]
    node: Option<NodeName>,
    /// This node's address: control API and metrics are served there.
    #[arg(long, value_name = "IP", env = "NODE_ADDRESS")]
    address: Option<IpAddr>,
    /// A directory for the private key and the certificates.
    #[arg(long, value_name = "DIR", env = "WEFT_STATE")]
    state: Option<PathBuf>,
    /// TCP port of the control API.
    #[arg(
        long,
        value_name = "PORT",
        env = "WEFT_CONTROL_PORT",
        default_value_t = 7400
    )]
    control_port: u16,
    /// TCP port of /metrics, /healthz and /readyz.
    #[arg(
        long,
        value_name = "PORT",
        env = "WEFT_METRICS_PORT",
        default_value_t = 7401
    )]
    metrics_port: u16,
    /// Give metrics over TLS only, and only with the token of a user who may get the nonResourceURL /metrics, as the operator
    /// says. The probes' pages need neither.
    #[arg(long, env = "WEFT_METRICS_AUTH")]
    metrics_auth: bool,
    /// Where the roots are: root NAME is the directory NAME in it.
    #[arg(
        long,
        value_name = "DIR",
        env = "WEFT_ROOTS_DIR",
        default_value = "/weft/roots"
    )]
    roots_dir: PathBuf,
    /// The socket of the node's weft-engine; without it pods have no virtual devices. Beside it the agent writes the flags of
    /// weft-engine and of weft-device-plugin: engine.args and device-plugin.args.
    #[arg(long, value_name = "PATH", env = "WEFT_ENGINE_SOCKET")]
    engine_socket: Option<PathBuf>,
    /// A directory in which the node's weft-volume-driver finds the agent; without it pods mount no copies.
    #[arg(long, value_name = "DIR", env = "WEFT_VOLUMES")]
    volumes: Option<PathBuf>,
    /// The proxy by which stores of objects are reached.
    #[arg(long, value_name = "http://HOST:PORT", env = "WEFT_STORE_PROXY")]
    store_proxy: Option<ProxyUrl>,
    /// Hosts, domains and CIDRs, separated by commas, that are reached without it.
    #[arg(
        long,
        value_name = "HOSTS",
        env = "WEFT_STORE_NO_PROXY",
        default_value = ""
    )]
    store_no_proxy: String,
    /// Authorities that vouch for stores, besides the public ones.
    #[arg(long, value_name = "PEM", env = "WEFT_STORE_CA")]
    store_ca: Option<Authorities>,
    /// Jobs that read with this agent's identity at a cloud if they have no Secret; may be given several times.
    /// The identity is that of the environment: AWS_ROLE_ARN and others.
    #[arg(long, value_name = "NAMESPACE=URL")]
    workload_identity: Vec<AllowedPrefix>,
}

/// Where the configuration comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    File(PathBuf),
    Operator(Box<Settings>),
}

impl Arguments {
    /// From the command line and the environment; ends the process where they are wrong.
    pub(crate) fn read() -> (Self, Origin) {
        let matches = Self::command().get_matches();
        Self::of(&matches).unwrap_or_else(|error| error.exit())
    }

    fn of(matches: &ArgMatches) -> Result<(Self, Origin), clap::Error> {
        let arguments = Self::from_arg_matches(matches)?;
        let origin = match &arguments.config {
            None => Origin::Operator(Box::new(arguments.enroll.settings()?)),
            Some(file) => {
                // What the environment says of a node is there for others, too.
                let flags = Enroll::augment_args(clap::Command::new("enroll"));
                let given = flags.get_arguments().find(|flag| {
                    let source = matches.value_source(flag.get_id().as_str());
                    source == Some(ValueSource::CommandLine)
                });
                if let Some(flag) = given {
                    let name = flag.get_long().unwrap_or_default();
                    let problem = format!(
                        "--{name} cannot be used with --config, which says everything: give one or the other"
                    );
                    return Err(Self::command().error(ErrorKind::ArgumentConflict, problem));
                }
                Origin::File(file.clone())
            }
        };
        Ok((arguments, origin))
    }
}

impl Enroll {
    fn settings(&self) -> Result<Settings, clap::Error> {
        Ok(Settings {
            operator: given(&self.operator, "--operator", "WEFT_OPERATOR")?,
            operator_ca: given(&self.operator_ca, "--operator-ca", "WEFT_OPERATOR_CA")?,
            token: given(&self.token, "--token", "WEFT_TOKEN")?,
            fabric: given(&self.fabric, "--fabric", "WEFT_FABRIC")?,
            node: given(&self.node, "--node", "NODE_NAME")?,
            address: given(&self.address, "--address", "NODE_ADDRESS")?,
            state: given(&self.state, "--state", "WEFT_STATE")?,
            control_port: self.control_port,
            metrics_port: self.metrics_port,
            metrics_auth: self.metrics_auth,
            roots_dir: self.roots_dir.clone(),
            engine_socket: self.engine_socket.clone(),
            volumes: self.volumes.clone(),
            pod_configuration: self.pod_configuration.clone(),
            objects: Objects {
                proxy: self.store_proxy.clone(),
                no_proxy: self.store_no_proxy.clone(),
                authorities: self.store_ca.clone().unwrap_or_default(),
                workload_identity: WorkloadIdentity {
                    allowed: self.workload_identity.clone(),
                    environment: WorkloadIdentity::environment(),
                },
                ..Objects::default()
            },
            timing: Timing::default(),
        })
    }
}

fn given<T: Clone>(value: &Option<T>, flag: &str, variable: &str) -> Result<T, clap::Error> {
    value.clone().ok_or_else(|| {
        let problem = format!(
            "{flag} (or {variable}) is missing: give --config FILE, or everything that an agent needs to enrol"
        );
        Arguments::command().error(ErrorKind::MissingRequiredArgument, problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENROLL: [&str; 14] = [
        "--operator",
        "10.96.0.7:7410",
        "--operator-ca",
        "/etc/weft/ca/ca.crt",
        "--token",
        "/token",
        "--fabric",
        "default",
        "--node",
        "n1",
        "--address",
        "10.0.0.5",
        "--state",
        "/var/lib/weft/state",
    ];

    fn parse(arguments: &[&str]) -> Result<Origin, String> {
        let all = ["weft-agent"].iter().chain(arguments);
        let matches = Arguments::command().try_get_matches_from(all);
        let origin = matches.and_then(|matches| Arguments::of(&matches));
        origin
            .map(|(_, origin)| origin)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_or_everything_that_enrolling_takes() {
        Arguments::command().debug_assert();
        assert!(matches!(
            parse(&["--config", "a.yaml"]),
            Ok(Origin::File(_))
        ));
        let Ok(Origin::Operator(settings)) = parse(&ENROLL) else {
            panic!("not understood");
        };
        assert_eq!((settings.control_port, settings.metrics_port), (7400, 7401));
        assert!(!settings.metrics_auth);
        assert_eq!(settings.roots_dir.to_str(), Some("/weft/roots"));
        for missing in (0..ENROLL.len()).step_by(2) {
            let mut some = ENROLL.to_vec();
            some.drain(missing..missing + 2);
            let error = parse(&some).unwrap_err();
            assert!(error.contains(ENROLL[missing]), "{error}");
        }
    }

    #[test]
    fn the_way_to_stores_and_the_identity_there_are_flags() {
        let more = [
            "--store-proxy=http://proxy.example:3128",
            "--store-no-proxy=minio.example",
            "--workload-identity=team-a=s3://models/a/",
            "--workload-identity=*=az://public/",
        ];
        let Ok(Origin::Operator(settings)) = parse(&[&ENROLL, more.as_slice()].concat()) else {
            panic!("not understood");
        };
        let objects = settings.objects;
        assert_eq!(
            objects.proxy,
            Some("http://proxy.example:3128".parse().unwrap())
        );
        assert_eq!(objects.no_proxy, "minio.example");
        assert_eq!(objects.workload_identity.allowed.len(), 2);
        for (wrong, told) in [
            ("--workload-identity=s3://models/", "NAMESPACE=URL"),
            ("--store-proxy=proxy.example:3128", "http://HOST:PORT"),
            ("--store-ca=/etc/ssl/ca.pem", "give PEM certificates"),
        ] {
            let error = parse(&[&ENROLL, [wrong].as_slice()].concat()).unwrap_err();
            assert!(error.contains(told), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_file_excludes_the_other_flags_and_says_which() {
        let flags: [&[&str]; 3] = [
            &["--node", "n1"],
            &["--metrics-port", "7401"],
            &["--metrics-auth"],
        ];
        for flag in flags {
            let error = parse(&[&["--config", "a.yaml"], flag].concat()).unwrap_err();
            assert!(error.contains(flag[0]), "{error}");
        }
        let check = parse(&[&["--check-config"], ENROLL.as_slice()].concat());
        assert!(check.unwrap_err().contains("--config"));
    }

    #[test]
    fn what_is_no_name_and_no_address_is_refused() {
        for (index, wrong) in [(7, "a.b"), (9, "N_1"), (11, "node.example")] {
            let mut all = ENROLL;
            all[index] = wrong;
            let error = parse(&all).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
