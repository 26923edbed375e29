//! A real browser: Chromium without a window, steered through ChromeDriver, which speaks WebDriver. It knows nothing of
//! the product.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use switchboard_testkit::Eventually;
use switchboard_testkit_postgres::install_package;
use tempfile::TempDir;

/// How long Chromium may take to start on a busy machine.
const START: Duration = Duration::from_secs(180);

/// How long a script in a page may take, in milliseconds.
const SCRIPT_MS: u64 = 120_000;

/// A browser with one page. Both processes end with this value, and leave nothing behind.
pub(crate) struct Browser {
    http: reqwest::Client,
    session: String,
    _driver: Running,
    _chromium: Running,
    _folder: TempDir,
}

impl Browser {
    /// Starts a browser with a profile of its own.
    ///
    /// # Panics
    /// Panics when this machine has no Chromium and no way to get it.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("switchboard-browser-").tempdir().unwrap();
        // Chromium is started here and not by its driver, so that it can be ended by its handle.
        let mut chromium = Running::start(&mut chromium_command(folder.path()), &folder.path().join("chromium.log"));
        let debugger =
            chromium.port("DevToolsActivePort", folder.path(), |text| text.lines().next()?.parse().ok()).await;
        let mut command = Command::new(program(&["chromedriver"], "chromium-driver"));
        let mut driver = Running::start(command.arg("--port=0"), &folder.path().join("driver.log"));
        let port = driver.port("driver.log", folder.path(), announced_port).await;

        // Whoever installed a provider first has decided already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
        let options = json!({"debuggerAddress": format!("127.0.0.1:{debugger}")});
        let wanted = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}});
        let sessions = format!("http://127.0.0.1:{port}/session");
        let session = Eventually::new("a session of the browser").within(START);
        let session = session.holds(async || post(&http, &sessions, &wanted).await).await;
        let session = format!("{sessions}/{}", session["sessionId"].as_str().unwrap());
        let browser = Self { http, session, _driver: driver, _chromium: chromium, _folder: folder };
        browser.post("timeouts", json!({"script": SCRIPT_MS})).await;
        browser
    }

    /// Loads a page.
    pub(crate) async fn open(&self, url: &str) {
        self.post("url", json!({"url": url})).await;
    }

    /// Runs the body of an async function in the page, which is given `input`, and returns what it returns.
    pub(crate) async fn run(&self, body: &str, input: Value) -> Value {
        // ChromeDriver takes only some errors for what they are.
        let settled = ".then((value) => ({ value }), (error) => ({ error: `${error}` }))";
        let script = format!("return (async (input) => {{ {body} }})(arguments[0]){settled};");
        let mut outcome = self.post("execute/sync", json!({"script": script, "args": [input]})).await;
        assert_eq!(outcome["error"], Value::Null, "{body}");
        outcome["value"].take()
    }

    async fn post(&self, command: &str, body: Value) -> Value {
        let answer = post(&self.http, &format!("{}/{command}", self.session), &body).await;
        answer.unwrap_or_else(|error| panic!("{command} {body}: {error}"))
    }
}

/// Gives a command to the driver; an error is what it says.
async fn post(http: &reqwest::Client, url: &str, body: &Value) -> Result<Value, String> {
    let answer = http.post(url).json(body).send().await.map_err(|error| format!("{error:?}"))?;
    let is_done = answer.status().is_success();
    let value = answer.json::<Value>().await.map_err(|error| format!("{error:?}"))?["value"].take();
    if is_done { Ok(value) } else { Err(value.to_string()) }
}

fn chromium_command(folder: &Path) -> Command {
    let mut command = Command::new(program(&["chromium", "chromium-browser", "google-chrome"], "chromium"));
    command
        .arg("--headless=new")
        // The page is ours, and root has no sandbox.
        .arg("--no-sandbox")
        .arg("--disable-gpu")
        .arg("--disable-dev-shm-usage")
        .arg("--disable-background-networking")
        .arg("--disable-component-update")
        .arg("--disable-breakpad")
        .arg("--no-first-run")
        .arg("--no-proxy-server")
        .arg("--remote-debugging-port=0")
        .arg(format!("--user-data-dir={}", folder.display()))
        .arg("about:blank");
    command
}

/// Reads the port from what ChromeDriver prints.
fn announced_port(text: &str) -> Option<u16> {
    let (_, after) = text.split_once("started successfully on port ")?;
    after.split('.').next()?.parse().ok()
}

/// Finds a program by one of its names, after installing its package if there is none.
fn program(names: &[&str], package: &str) -> PathBuf {
    find(names).unwrap_or_else(|| {
        let advice = format!("tests of the client for browsers need the package {package}");
        install_package(package).unwrap_or_else(|error| panic!("{advice}: {error}"));
        find(names).unwrap_or_else(|| panic!("{advice}, which has brought none of {names:?}"))
    })
}

fn find(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).collect::<Vec<_>>();
    names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|path| path.is_file())
}

/// A process that ends with this value.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(command: &mut Command, log: &Path) -> Self {
        let output = File::create(log).unwrap();
        let errors = output.try_clone().unwrap();
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().unwrap();
        Self { child, log: log.to_owned() }
    }

    /// Waits for the port that the process writes into a file.
    async fn port(&mut self, file: &str, folder: &Path, read: fn(&str) -> Option<u16>) -> u16 {
        let port = Eventually::new(format!("a port in {file}")).within(START);
        port.holds(async || {
            let said = || fs::read_to_string(&self.log).unwrap_or_default();
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("it ended with {status}: {}", said());
            }
            read(&fs::read_to_string(folder.join(file)).unwrap_or_default()).ok_or_else(said)
        })
        .await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A process that cannot be ended has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
