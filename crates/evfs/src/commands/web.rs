//! `evfs web`: the address of the web page, with which a browser logs in.

use cli::document::Document;
use cli::{Context, output};
use schemars::JsonSchema;
use serde::Serialize;
use stack::{Error, Result, exit, web};
use std::path::Path;
use std::process::Command;

#[derive(clap::Args)]
#[command(after_help = "\
The page is served by the process of a service that was started with the setting `web.listen`, for
example 127.0.0.1:9465. Only root and the user of that process can open it.

The address logs one browser in, once. The token in it is valid until it is used, or until the
process ends; run the command again for another browser. Do not pass the address to a program as an \
argument, which other users can see: --open passes a file that only this user can read.

For a page on a socket, or on another machine, forward a port to it with ssh.

Examples:
  evfs web                                    print the address
  evfs web --open                             open it in the browser of this desktop
  ssh -L 8000:/run/evfs/web.sock server       then, on the server: evfs web --port 8000")]
pub struct Args {
    /// Port in the address, if a port of the browser's machine is forwarded to the page
    /// [default: the port of the page, or 9465 for a socket]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Open the page in the browser of this desktop (xdg-open)
    #[arg(long)]
    open: bool,
}

/// Address of the web page.
#[derive(Serialize, JsonSchema)]
pub struct PageAddress {
    /// Address that logs one browser in, once; the token in it is secret.
    url: String,
    /// Loopback address and port, unless the page is on a socket.
    address: Option<String>,
    /// Path of the socket, unless the page is on a loopback address.
    socket: Option<String>,
    /// ID of the process that serves the page.
    pid: u32,
}

pub const ADDRESS: Document<PageAddress> = Document::new("evfs/web/1");

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    let page = web::invitation(&context.settings)?;
    let content = PageAddress {
        url: page.url(args.port),
        address: page.address.map(|address| address.to_string()),
        socket: page.socket.as_ref().map(|path| path.display().to_string()),
        pid: page.pid,
    };
    if let Some(socket) = page.socket.as_ref().filter(|_| args.port.is_none()) {
        if args.open {
            return Err(Error::Usage(format!(
                "the page is on the socket {}, which a browser cannot open; forward a port to it, \
                 and use --port",
                socket.display()
            )));
        }
        let note = format!(
            "the page is on a socket; forward a port to it first: ssh -L {}:{} HOST",
            page.port(None),
            socket.display()
        );
        output::say(context.json, &note);
    }
    if args.open {
        let file = page.redirect(&context.settings, args.port)?;
        open(&file)?;
        output::show(context.json, &ADDRESS, &content, || {
            format!("opened with {}", file.display())
        });
    } else {
        output::show(context.json, &ADDRESS, &content, || content.url.clone());
    }
    Ok(exit::OK)
}

/// Opens a file in the browser of this desktop.
fn open(file: &Path) -> Result<()> {
    let why = match Command::new("xdg-open").arg(file).status() {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(e) => e.to_string(),
    };
    Err(Error::Failed(format!(
        "cannot open the page with xdg-open: {why}; open {} manually",
        file.display()
    )))
}
