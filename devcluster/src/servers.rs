//! etcd, kube-apiserver and what else of Kubernetes is asked for.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use phalanx_kube_binaries::{Binaries, Tool, Version, ensure};
use rustix::process::Signal;
use tokio::sync::OnceCell;
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use crate::audit::{self, Audited};
use crate::error::Error;
use crate::folder::Folder;
use crate::kubeconfig;
use crate::kubectl::Kubectl;
use crate::options::Options;
use crate::pki::Pki;
use crate::process::Server;
use crate::tokens::{self, TokenOptions};

/// How long a server may take: seconds where the machine is free, and it may not be.
const READY_LIMIT: Duration = Duration::from_secs(120);
const READY_POLL: Duration = Duration::from_millis(50);
/// A port that was free may be taken before the server has it.
const ATTEMPTS: u32 = 3;
const ADMIN: &str = "admin";

/// Servers that run. Dropping them ends them and removes their data.
#[derive(Debug)]
pub struct Servers {
    // First the processes end, then the folder goes: fields drop in this order.
    running: Mutex<Running>,
    url: String,
    kubeconfigs: BTreeMap<String, PathBuf>,
    version: Version,
    binaries: Binaries,
    pki: Pki,
    api_server_arguments: Vec<String>,
    folder: Folder,
}

/// The processes; those that need the API server end before it.
#[derive(Debug, Default)]
struct Running {
    others: Vec<Server>,
    api_server: Option<Server>,
    etcd: Option<Server>,
}

impl Servers {
    /// Builds what is missing, starts etcd and kube-apiserver and waits until they are ready: seconds, or minutes the
    /// very first time.
    ///
    /// # Errors
    /// A program cannot be built, or a server does not come up; the text holds the end of its log.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let version = options.version.map_or_else(Version::of_environment, Ok)?;
        let binaries = binaries(version, vec![Tool::Etcd, Tool::ApiServer, Tool::Kubectl]).await?;
        let mut attempt = 1;
        loop {
            match Self::start_once(&options, version, binaries.clone()).await {
                Err(Error::NotReady { tail, .. })
                    if attempt < ATTEMPTS && tail.contains("address already in use") =>
                {
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    /// The servers that all tests of one program share, with the default options; each test takes a namespace of its
    /// own, see [`Servers::namespace`]. They end with the program.
    ///
    /// # Errors
    /// As `start`.
    pub async fn shared() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<Servers> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::start(Options::default())).await
    }

    async fn start_once(options: &Options, version: Version, binaries: Binaries) -> Result<Self, Error> {
        let folder = options.folder.as_deref().map_or_else(Folder::temporary, Folder::kept)?;
        let pki = Pki::create(&folder)?;
        let [etcd_port, peer_port, port] = free_ports()?;
        let url = format!("https://127.0.0.1:{port}");
        let mut kubeconfigs = BTreeMap::new();
        let mut tokens = String::new();
        let admin = (ADMIN.to_owned(), vec!["system:masters".to_owned()]);
        for (user, groups) in std::iter::once(&admin).chain(&options.users) {
            // A token nobody else knows: a server that answers to it is ours.
            let token = uuid::Uuid::new_v4().simple().to_string();
            tokens += &format!("{token},{user},{user},\"{}\"\n", groups.join(","));
            kubeconfigs.insert(user.clone(), kubeconfig::write(&folder, &pki, &url, user, &token)?);
        }
        let tokens = folder.write("tokens.csv", &tokens)?;
        let etcd = etcd_arguments(folder.path(), etcd_port, peer_port);
        let etcd = Server::start("etcd", binaries.path(Tool::Etcd)?, &etcd, folder.path())?;
        let mut arguments = api_server_arguments(options, &pki, &tokens, folder.path());
        arguments.push(format!("--etcd-servers=http://127.0.0.1:{etcd_port}"));
        arguments.push(format!("--secure-port={port}"));
        if options.audit {
            arguments.extend(audit::write_policy(&folder)?);
        }
        arguments.extend(options.api_server_flags.iter().cloned());
        let servers = Self {
            running: Mutex::new(Running { etcd: Some(etcd), ..Running::default() }),
            url,
            kubeconfigs,
            version,
            binaries,
            pki,
            api_server_arguments: arguments,
            folder,
        };
        servers.start_api_server().await?;
        Ok(servers)
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the API server, as a crash would; etcd keeps everything.
    pub fn kill_api_server(&self) {
        self.running().api_server = None;
    }

    /// Stops the API server in its tracks (SIGSTOP), or lets it go on: what hangs, and does not refuse.
    pub fn freeze_api_server(&self, frozen: bool) {
        if let Some(server) = &self.running().api_server {
            server.signal(if frozen { Signal::STOP } else { Signal::CONT });
        }
    }

    /// Starts the API server again where it was, and waits until it is ready.
    ///
    /// # Errors
    /// It does not come up.
    pub async fn start_api_server(&self) -> Result<(), Error> {
        let program = self.binaries.path(Tool::ApiServer)?;
        let server =
            Server::start("kube-apiserver", program, &self.api_server_arguments, self.folder.path())?;
        self.running().api_server = Some(server);
        let client = self.admin_client().await?;
        let started = Instant::now();
        loop {
            self.check()?;
            // Until it is ready it answers with 500, and the client logs every one as an error.
            let asked = ready(&client).with_subscriber(NoSubscriber::default()).await;
            let Err(last) = asked else { return Ok(()) };
            if started.elapsed() > READY_LIMIT {
                let what = format!("is not ready after {} s: {last}", READY_LIMIT.as_secs());
                let failure = self.running().api_server.as_ref().map(|server| server.failure(&what));
                return Err(failure.unwrap_or_else(|| Error::Task(format!("kube-apiserver {what}"))));
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    /// Fails where a server has ended by itself.
    ///
    /// # Errors
    /// One has, with the end of its log.
    pub fn check(&self) -> Result<(), Error> {
        let mut running = self.running();
        let Running { others, api_server, etcd } = &mut *running;
        etcd.iter_mut().chain(api_server).chain(others).try_for_each(Server::check)
    }

    /// Names and process ids of what runs.
    #[must_use]
    pub fn processes(&self) -> Vec<(String, u32)> {
        let running = self.running();
        let all = running.etcd.iter().chain(&running.api_server).chain(&running.others);
        all.map(|server| (server.name().to_owned(), server.id())).collect()
    }

    /// The version that runs.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// `https://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Data, keys, and the logs `etcd.log`, `kube-apiserver.log` and so on.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The authority that signed the API server's certificate, PEM.
    #[must_use]
    pub fn authority_file(&self) -> &Path {
        &self.pki.authority
    }

    /// The admin's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        // `start_once` always writes it.
        self.kubeconfigs.get(ADMIN).map_or(Path::new("admin.kubeconfig"), PathBuf::as_path)
    }

    /// A user's kubeconfig.
    ///
    /// # Errors
    /// The options named no such user.
    pub fn kubeconfig_of(&self, user: &str) -> Result<&Path, Error> {
        let path = self.kubeconfigs.get(user).map(PathBuf::as_path);
        path.ok_or_else(|| Error::UnknownUser(user.to_owned()))
    }

    /// A client that may do everything. It belongs to the runtime that asks: every test asks for its own.
    ///
    /// # Errors
    /// The kubeconfig cannot be read.
    pub async fn admin_client(&self) -> Result<Client, Error> {
        kubeconfig::client(self.kubeconfig()).await
    }

    /// A client of one of the options' users.
    ///
    /// # Errors
    /// The options named no such user.
    pub async fn client_for(&self, user: &str) -> Result<Client, Error> {
        kubeconfig::client(self.kubeconfig_of(user)?).await
    }

    /// A kubeconfig with this bearer token; `name` names the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubeconfig_with_token(&self, name: &str, token: &str) -> Result<PathBuf, Error> {
        kubeconfig::write(&self.folder, &self.pki, &self.url, name, token)
    }

    /// A kubeconfig of a ServiceAccount, which must exist: what runs with it has exactly its rights.
    ///
    /// # Errors
    /// There is no such account.
    pub async fn kubeconfig_for_account(&self, namespace: &str, account: &str) -> Result<PathBuf, Error> {
        let token = self.token(namespace, account, &TokenOptions::default()).await?;
        self.kubeconfig_with_token(&format!("{namespace}-{account}"), &token)
    }

    /// A client of a ServiceAccount, which must exist.
    ///
    /// # Errors
    /// There is no such account.
    pub async fn client_for_account(&self, namespace: &str, account: &str) -> Result<Client, Error> {
        kubeconfig::client(&self.kubeconfig_for_account(namespace, account).await?).await
    }

    /// A token of a ServiceAccount, as a pod gets it.
    ///
    /// # Errors
    /// There is no such account, or no such pod.
    pub async fn token(
        &self,
        namespace: &str,
        account: &str,
        options: &TokenOptions,
    ) -> Result<String, Error> {
        tokens::token(&self.admin_client().await?, namespace, account, options).await
    }

    /// Makes a namespace whose name begins so and that nobody else has; gives its name.
    ///
    /// # Errors
    /// The API server refuses the name.
    pub async fn namespace(&self, prefix: &str) -> Result<String, Error> {
        let mut namespace = Namespace::default();
        namespace.metadata.generate_name = Some(format!("{prefix}-"));
        let namespaces: Api<Namespace> = Api::all(self.admin_client().await?);
        let made = namespaces.create(&Default::default(), &namespace).await;
        let made = made.map_err(Error::api(format!("namespace {prefix}")))?;
        Ok(made.metadata.name.unwrap_or_default())
    }

    /// Runs kubectl as the admin; gives what it wrote on stdout.
    ///
    /// # Errors
    /// It fails, with what it wrote.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String, Error> {
        self.run_kubectl(arguments, None).await
    }

    /// The same with this text as its input, for `apply -f -`.
    ///
    /// # Errors
    /// It fails, with what it wrote.
    pub async fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Result<String, Error> {
        self.run_kubectl(arguments, Some(input.to_owned())).await
    }

    async fn run_kubectl(&self, arguments: &[&str], input: Option<String>) -> Result<String, Error> {
        let kubectl = Kubectl {
            program: self.kubectl_program()?.to_owned(),
            kubeconfig: self.kubeconfig().to_owned(),
            cache: self.folder().join("kubectl-cache"),
        };
        kubectl.run(arguments.iter().map(|argument| (*argument).to_owned()).collect(), input).await
    }

    /// The kubectl of this version.
    ///
    /// # Errors
    /// None; it was built at the start.
    pub fn kubectl_program(&self) -> Result<&Path, Error> {
        Ok(self.binaries.path(Tool::Kubectl)?)
    }

    /// Starts kube-controller-manager with these controllers, such as `garbage-collector-controller`,
    /// `daemonset-controller`, `serviceaccount-controller`, `root-ca-certificate-publisher-controller`.
    ///
    /// # Errors
    /// It cannot be built or started.
    pub async fn start_controller_manager(&self, controllers: &[&str]) -> Result<(), Error> {
        let arguments = [
            format!("--kubeconfig={}", self.kubeconfig().display()),
            format!("--service-account-private-key-file={}", self.pki.service_account_key.display()),
            format!("--root-ca-file={}", self.pki.authority.display()),
            format!("--controllers={}", controllers.join(",")),
            "--kube-api-qps=1000".to_owned(),
            "--kube-api-burst=1000".to_owned(),
        ];
        self.start_other(Tool::ControllerManager, &arguments).await
    }

    /// Starts kube-scheduler: for pods of DaemonSets, and as what benches compare with. No limit of its client holds
    /// it back.
    ///
    /// # Errors
    /// It cannot be built or started.
    pub async fn start_scheduler(&self) -> Result<(), Error> {
        let arguments = [
            format!("--kubeconfig={}", self.kubeconfig().display()),
            "--kube-api-qps=10000".to_owned(),
            "--kube-api-burst=10000".to_owned(),
        ];
        self.start_other(Tool::Scheduler, &arguments).await
    }

    async fn start_other(&self, tool: Tool, arguments: &[String]) -> Result<(), Error> {
        let built = binaries(self.version, vec![tool]).await?;
        let common = ["--leader-elect=false".to_owned(), "--secure-port=0".to_owned()];
        let arguments: Vec<String> = arguments.iter().cloned().chain(common).collect();
        let server = Server::start(tool.name(), built.path(tool)?, &arguments, self.folder.path())?;
        self.running().others.push(server);
        Ok(())
    }

    /// Ends kube-controller-manager or kube-scheduler.
    pub fn stop_other(&self, tool: Tool) {
        self.running().others.retain(|server| server.name() != tool.name());
    }

    /// Everything the API server was asked so far; the options must have asked for it.
    ///
    /// # Errors
    /// There is no audit log.
    pub fn audited(&self) -> Result<Vec<Audited>, Error> {
        audit::read(self.folder.path())
    }
}

async fn binaries(version: Version, tools: Vec<Tool>) -> Result<Binaries, Error> {
    let task = tokio::task::spawn_blocking(move || ensure(version, &tools));
    Ok(task.await.map_err(|error| Error::Task(format!("building Kubernetes: {error}")))??)
}

/// Ready, and with the namespaces that everybody counts on, which come a moment later.
async fn ready(client: &Client) -> Result<(), String> {
    let request = http::Request::get("/readyz").body(Vec::new()).map_err(|error| error.to_string())?;
    client.request_text(request).await.map_err(|error| error.to_string())?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in ["default", "kube-system"] {
        namespaces.get(name).await.map_err(|error| format!("namespace {name}: {error}"))?;
    }
    Ok(())
}

/// Ports that are free now. All are held until all are known, so that they differ.
fn free_ports<const COUNT: usize>() -> Result<[u16; COUNT], Error> {
    let failed = |source| Error::Start { name: "a listener on 127.0.0.1".to_owned(), source };
    let mut listeners = Vec::new();
    let mut ports = [0; COUNT];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        *port = listener.local_addr().map_err(failed)?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

fn etcd_arguments(folder: &Path, port: u16, peer_port: u16) -> Vec<String> {
    let client = format!("http://127.0.0.1:{port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    vec![
        "--name=test".to_owned(),
        format!("--data-dir={}", folder.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=test={peer}"),
        "--unsafe-no-fsync".to_owned(),
        "--quota-backend-bytes=8589934592".to_owned(),
        "--log-level=warn".to_owned(),
    ]
}

fn api_server_arguments(options: &Options, pki: &Pki, tokens: &Path, folder: &Path) -> Vec<String> {
    let mut arguments = vec![
        "--bind-address=127.0.0.1".to_owned(),
        // Nobody reaches it there; without one a machine without a network would not do.
        "--advertise-address=192.0.2.1".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--cert-dir={}", folder.join("certificates").display()),
        format!("--tls-cert-file={}", pki.certificate.display()),
        format!("--tls-private-key-file={}", pki.key.display()),
        format!("--token-auth-file={}", tokens.display()),
        format!("--service-account-key-file={}", pki.service_account_public_key.display()),
        format!("--service-account-signing-key-file={}", pki.service_account_key.display()),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--profiling=false".to_owned(),
    ];
    let disabled = options.disabled_plugins();
    if !disabled.is_empty() {
        arguments.push(format!("--disable-admission-plugins={}", disabled.join(",")));
    }
    arguments
}
