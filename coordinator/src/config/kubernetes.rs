//! The part of the configuration that says how the coordinator works on a Kubernetes cluster.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use phalanx_kubernetes::client::Target;
use phalanx_kubernetes::election::LeaseTimes;
use phalanx_text::Values;
use phalanx_text::settings::shown;

use crate::convert::OWN_NAMESPACE;
use crate::manifest::names::{SCHEDULER_PHALANX, label_problem};

/// Least time between the moment when a leader stops and the moment when the next one may begin: its last requests are
/// answered, or given up, in between.
const LAST_ANSWER: Duration = Duration::from_millis(500);
/// Keys that mean nothing without `kubernetes`, in the order of the flags.
pub(super) const KEYS: [&str; 13] = [
    "shadow",
    "kubeconfig",
    "context",
    "namespace",
    "identity",
    "lease-duration",
    "renew-deadline",
    "retry-period",
    "bind-qps",
    "scheduler-names",
    "admin-advertise",
    "agent-identity",
    "pki-dir",
];

/// How agents show who they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AgentIdentity {
    /// By the token of their pod, which the API server reviews.
    #[default]
    Token,
    /// By a certificate of an authority whose files the replicas share.
    Certificate,
}

/// How the coordinator works on a Kubernetes cluster, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// Decide and record, and do nothing.
    pub shadow: bool,
    /// Where the API server is.
    pub target: Target,
    /// Namespace of everything that is Phalanx's own.
    pub namespace: String,
    /// Name of this replica in the Lease.
    pub identity: String,
    /// Times of the leader's election.
    pub times: LeaseTimes,
    /// Most Bindings a second; `None` = no limit.
    pub bind_qps: Option<u32>,
    /// Scheduler names that are served; at least one.
    pub scheduler_names: Vec<String>,
    /// Where the API server reaches the admin interface; `None` where nothing is said about it.
    pub admin_advertise: Option<SocketAddr>,
    /// How agents show who they are.
    pub agent_identity: AgentIdentity,
    /// Directory of the authority for agents with certificates; `None` = `pki` in the state directory.
    pub pki_dir: Option<PathBuf>,
}

/// Reads the keys; `None` in standalone mode, where none of them may be given.
pub(super) fn read(values: &mut Values, in_kubernetes: bool, admin: SocketAddr) -> Option<KubernetesConfig> {
    if !in_kubernetes {
        for key in KEYS {
            if values.written(key).is_some() {
                values.wrong(key, "left out, because kubernetes is off");
            }
        }
        return None;
    }
    Some(KubernetesConfig {
        shadow: values.boolean("shadow", false),
        target: Target {
            kubeconfig: values.path("kubeconfig", "the path of a kubeconfig"),
            context: text(values, "context", "the name of a context of the kubeconfig", |_| true),
        },
        namespace: namespace(values),
        identity: identity(values),
        times: times(values),
        bind_qps: u32::try_from(values.number("bind-qps", 0, 0, 1_000_000)).ok().filter(|limit| *limit > 0),
        scheduler_names: scheduler_names(values),
        admin_advertise: admin_advertise(values, admin),
        agent_identity: agent_identity(values),
        pki_dir: values.path("pki-dir", "the path of a directory"),
    })
}

fn text(
    values: &mut Values,
    key: &'static str,
    expected: &str,
    rule: impl Fn(&str) -> bool,
) -> Option<String> {
    values.read(key, expected, |written| {
        let text = written.text();
        (!text.is_empty() && rule(text)).then(|| text.to_owned())
    })
}

fn from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn namespace(values: &mut Values) -> String {
    let expected = "1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends";
    text(values, "namespace", expected, |text| label_problem(text).is_none())
        .or_else(|| from_environment("POD_NAMESPACE"))
        .unwrap_or_else(|| OWN_NAMESPACE.to_owned())
}

fn identity(values: &mut Values) -> String {
    let expected = "1 to 253 letters, digits, '-', '_' and '.'";
    let rule = |text: &str| {
        text.len() <= 253
            && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
    };
    text(values, "identity", expected, rule)
        .or_else(|| from_environment("POD_NAME"))
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| rule(name) && !name.is_empty())
        .unwrap_or_else(|| "coordinator".to_owned())
}

fn times(values: &mut Values) -> LeaseTimes {
    let default = LeaseTimes::default();
    let [most, second] = [600, 1].map(Duration::from_secs);
    let lease_duration = values.duration("lease-duration", default.lease_duration, second, most);
    let renew_deadline =
        values.duration("renew-deadline", default.renew_deadline, Duration::from_millis(500), most);
    let retry_period =
        values.duration("retry-period", default.retry_period, Duration::from_millis(100), most);
    // Of values that could not be read nothing can be said.
    if !values.is_clean() {
        return default;
    }
    // Blame what was set: the other is a default the operator may not know.
    if renew_deadline + LAST_ANSWER > lease_duration {
        let least = shown(LAST_ANSWER);
        if values.written("renew-deadline").is_some() {
            let limit = format!("at least {least} below lease-duration, which is {}", shown(lease_duration));
            values.wrong("renew-deadline", &limit);
        } else {
            let limit = format!("at least {least} above renew-deadline, which is {}", shown(renew_deadline));
            values.wrong("lease-duration", &limit);
        }
    }
    if retry_period.mul_f64(1.2) >= renew_deadline {
        if values.written("retry-period").is_some() {
            let limit =
                format!("so that 1.2 times it is below renew-deadline, which is {}", shown(renew_deadline));
            values.wrong("retry-period", &limit);
        } else {
            let limit = format!("above 1.2 times retry-period, which is {}", shown(retry_period));
            values.wrong("renew-deadline", &limit);
        }
    }
    LeaseTimes { lease_duration, renew_deadline, retry_period }
}

fn scheduler_names(values: &mut Values) -> Vec<String> {
    let expected = "one to eight names with commas between them, each 1 to 63 of a-z, 0-9 and '-' with a letter or \
                    digit at both ends";
    let names = values.read("scheduler-names", expected, |written| {
        let mut names: Vec<String> = Vec::new();
        for name in written.text().split(',').map(str::trim) {
            if label_problem(name).is_some() {
                return None;
            }
            if !names.iter().any(|before| before == name) {
                names.push(name.to_owned());
            }
        }
        (names.len() <= 8).then_some(names)
    });
    names.unwrap_or_else(|| vec![SCHEDULER_PHALANX.to_owned()])
}

/// The API server takes no loopback address and no unspecified one for an endpoint.
fn admin_advertise(values: &mut Values, admin: SocketAddr) -> Option<SocketAddr> {
    let usable = |ip: IpAddr| !ip.is_loopback() && !ip.is_unspecified();
    let expected =
        "an IP address that the API server reaches, not loopback, and a port such as 10.0.0.7:7411";
    let written = values.read("admin-advertise", expected, |written| {
        written.text().parse().ok().filter(|address: &SocketAddr| usable(address.ip()) && address.port() != 0)
    });
    let of_pod = || from_environment("POD_IP")?.parse().ok().map(|ip| SocketAddr::new(ip, admin.port()));
    written.or_else(of_pod)
}

fn agent_identity(values: &mut Values) -> AgentIdentity {
    let how = values.read("agent-identity", "token or certificate", |written| match written.text() {
        "token" => Some(AgentIdentity::Token),
        "certificate" => Some(AgentIdentity::Certificate),
        _ => None,
    });
    how.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::{Config, RunArguments};
    use super::*;

    fn resolve(set: impl FnOnce(&mut RunArguments)) -> Result<Config, String> {
        let mut arguments = RunArguments { kubernetes: true, ..RunArguments::default() };
        set(&mut arguments);
        arguments.resolve().map_err(|error| error.to_string())
    }

    #[test]
    fn in_a_pod_nothing_need_be_said() {
        let config = resolve(|_| {}).unwrap();
        assert_eq!(config.state_dir, PathBuf::from("/var/lib/phalanx"));
        let kubernetes = config.kubernetes.unwrap();
        assert_eq!(kubernetes.target, Target::default());
        assert_eq!(kubernetes.namespace, "phalanx-system");
        assert_eq!(kubernetes.times, LeaseTimes::default());
        assert_eq!(kubernetes.scheduler_names, ["phalanx"]);
        assert_eq!((kubernetes.bind_qps, kubernetes.agent_identity), (None, AgentIdentity::Token));
        assert!(!kubernetes.identity.is_empty());
    }

    #[test]
    fn every_value_is_read() {
        let text = |text: &str| Some(text.to_owned());
        let config = resolve(|arguments| {
            arguments.shadow = true;
            arguments.kubeconfig = text("/k");
            arguments.context = text("c");
            arguments.namespace = text("n");
            arguments.identity = text("me");
            arguments.lease_duration = text("5s");
            arguments.renew_deadline = text("3s");
            arguments.retry_period = text("1s");
            arguments.bind_qps = text("7");
            arguments.scheduler_names = text("phalanx, volcano,phalanx");
            arguments.admin = text("0.0.0.0:1");
            arguments.admin_advertise = text("10.0.0.7:2");
            arguments.agent_identity = text("certificate");
            arguments.pki_dir = text("/p");
            arguments.state_dir = text("/s");
        })
        .unwrap();
        let seconds = Duration::from_secs;
        assert_eq!(
            config.kubernetes.unwrap(),
            KubernetesConfig {
                shadow: true,
                target: Target { kubeconfig: Some("/k".into()), context: text("c") },
                namespace: "n".to_owned(),
                identity: "me".to_owned(),
                times: LeaseTimes {
                    lease_duration: seconds(5),
                    renew_deadline: seconds(3),
                    retry_period: seconds(1)
                },
                bind_qps: Some(7),
                scheduler_names: vec!["phalanx".to_owned(), "volcano".to_owned()],
                admin_advertise: Some("10.0.0.7:2".parse().unwrap()),
                agent_identity: AgentIdentity::Certificate,
                pki_dir: Some("/p".into()),
            }
        );
        assert_eq!(config.admin.to_string(), "0.0.0.0:1");
    }

    #[test]
    fn the_times_of_the_lease_are_in_order() {
        let error = |duration: Option<&str>, deadline: Option<&str>, retry: Option<&str>| {
            let text = |text: Option<&str>| text.map(str::to_owned);
            let set = |arguments: &mut RunArguments| {
                arguments.lease_duration = text(duration);
                arguments.renew_deadline = text(deadline);
                arguments.retry_period = text(retry);
            };
            resolve(set).unwrap_err()
        };
        assert_eq!(
            error(None, Some("15s"), None),
            "--renew-deadline: must be at least 500ms below lease-duration, which is 15s, found \"15s\""
        );
        assert_eq!(
            error(Some("10s"), None, None),
            "--lease-duration: must be at least 500ms above renew-deadline, which is 10s, found \"10s\""
        );
        assert_eq!(
            error(Some("5s"), Some("4600ms"), None),
            "--renew-deadline: must be at least 500ms below lease-duration, which is 5s, found \"4600ms\""
        );
        assert_eq!(
            error(Some("5s"), Some("3s"), Some("2500ms")),
            "--retry-period: must be so that 1.2 times it is below renew-deadline, which is 3s, found \"2500ms\""
        );
        assert_eq!(
            error(Some("5s"), Some("2s"), None),
            "--renew-deadline: must be above 1.2 times retry-period, which is 2s, found \"2s\""
        );
    }

    #[test]
    fn values_that_cannot_be_used_are_named() {
        let error = |key: &str, value: &str| {
            let file = format!("kubernetes = true\n{key} = {value:?}\n");
            let arguments = RunArguments::default();
            arguments.resolve_bytes(file.as_bytes(), "F".as_ref()).unwrap_err().to_string()
        };
        let names = "one to eight names with commas between them, each 1 to 63 of a-z, 0-9 and '-' with a letter or \
                     digit at both ends";
        for wrong in ["", "phalanx,", "Phalanx", "a,b,c,d,e,f,g,h,i"] {
            let told = error("scheduler-names", wrong);
            assert_eq!(told, format!("F:2: scheduler-names: must be {names}, found {wrong:?}"));
        }
        for wrong in ["127.0.0.1:1", "0.0.0.0:1", "10.0.0.7", "10.0.0.7:0"] {
            assert!(
                error("admin-advertise", wrong).starts_with("F:2: admin-advertise: must be an IP address")
            );
        }
        assert!(error("agent-identity", "none").contains("must be token or certificate"));
        assert!(error("identity", "a b").contains("1 to 253 letters"));
        assert!(error("bind-qps", "-1").contains("a whole number from 0 to 1000000"));
    }

    #[test]
    fn standalone_takes_none_of_them() {
        let arguments = RunArguments {
            state_dir: Some("/s".to_owned()),
            namespace: Some("n".to_owned()),
            ..RunArguments::default()
        };
        assert_eq!(
            arguments.resolve().unwrap_err().to_string(),
            "--namespace: must be left out, because kubernetes is off, found \"n\""
        );
    }
}
