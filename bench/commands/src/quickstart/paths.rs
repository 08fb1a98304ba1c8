//! The volume's file, exported twice by this process as two paths to one LUN.

use export_nbd::{Config, Export, Listen, Server};
use stack::device::{Share, open};
use stack::{Access, Error, Result, Settings};
use std::path::Path;

/// Two servers over one file.
pub struct Served {
    servers: Vec<Server>,
    device: String,
}

impl Served {
    /// Serves `NAME.img` in `dir` on two Unix sockets.
    pub fn start(dir: &Path, name: &str, settings: &Settings) -> Result<Served> {
        let image = dir.join(format!("{name}.img"));
        let device = open(&image, settings, Access::ReadWrite, Share::Bytes)?.device();
        let mut servers = Vec::new();
        let mut uris = Vec::new();
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(|e| Error::Failed(e.to_string()))?;
        for path in ["a", "b"] {
            let config = Config {
                listen: vec![Listen::Unix(dir.join(format!("path-{path}.sock")))],
                ..Config::default()
            };
            let export = Export {
                name: name.to_owned(),
                // An ID that no other LUN has makes the two exports one LUN.
                description: format!("wwid=quickstart-{:016x}", u64::from_ne_bytes(id)),
                device: device.clone(),
                read_only: false,
            };
            let server = Server::start(config, vec![export])?;
            uris.extend(server.uris(name));
            servers.push(server);
        }
        Ok(Served {
            servers,
            device: uris.join("+"),
        })
    }

    /// Returns the two paths as a DEVICE argument.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Stops the first server.
    pub fn lose_one(&mut self) {
        if self.servers.len() > 1 {
            let _ = self.servers.remove(0).shutdown();
        }
    }
}
