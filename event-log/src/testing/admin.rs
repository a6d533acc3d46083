//! An operator's hands in NATS: questions and orders to the JetStream API, past the adapter.

use std::time::Duration;

use serde_json::Value;

use super::nats::NoServer;

/// A connection with an operator's rights.
#[derive(Debug, Clone)]
pub struct Admin {
    client: async_nats::Client,
}

impl Admin {
    /// At these servers (separated by commas); `login` as user and password. Connects when there is one to connect to.
    ///
    /// # Errors
    /// [`NoServer`] for URLs that are none.
    pub async fn connect(urls: &str, login: Option<(&str, &str)>) -> Result<Admin, NoServer> {
        let mut options = async_nats::ConnectOptions::new()
            .retry_on_initial_connect()
            .request_timeout(Some(Duration::from_secs(3)))
            .reconnect_delay_callback(|_| Duration::from_millis(100));
        if let Some((user, password)) = login {
            options = options.user_and_password(user.to_owned(), password.to_owned());
        }
        let servers: Vec<&str> = urls.split(',').collect();
        let client = options
            .connect(servers)
            .await
            .map_err(|why| NoServer::because(why.to_string()))?;
        Ok(Admin { client })
    }

    /// `$JS.API.WHAT`, once.
    ///
    /// # Errors
    /// [`NoServer`] without an answer, and with the broker's words when it refuses.
    pub async fn ask(&self, what: &str, body: &Value) -> Result<Value, NoServer> {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let answer = self
            .client
            .request(format!("$JS.API.{what}"), body.into())
            .await
            .map_err(|why| NoServer::because(format!("{what}: {why}")))?;
        let answer: Value = serde_json::from_slice(&answer.payload)
            .map_err(|why| NoServer::because(format!("{what}: {why}")))?;
        match answer.get("error") {
            Some(error) => Err(NoServer::because(format!("{what}: {error}"))),
            None => Ok(answer),
        }
    }
}
