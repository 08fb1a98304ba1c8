//! The kernel of this machine and a small server, which read and understand each other.
//!
//! With `FUSE_PROTO_DUMP=FILE` the test writes the first request of each operation to the file, in
//! hexadecimal. `tests/data` contains such files.

mod needs_root {
    use fuse_proto::*;
    use rustix::fs::{self, Mode, OFlags};
    use rustix::mount::{MountFlags, UnmountFlags};
    use std::collections::{BTreeMap, HashMap};
    use std::ffi::CString;
    use std::fs::File;
    use std::io::{IoSlice, Read, Seek, SeekFrom, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt, symlink};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::mpsc::{self, Sender};
    use std::time::Duration;

    const TTL: Duration = Duration::from_millis(1500);
    /// Group of the root directory, which is a supplementary group of the client.
    const GROUP: u32 = 2000;
    const BORN: Time = Time {
        seconds: -5,
        nanos: 700_000_000,
    };
    const FILE: u64 = 2;
    const LINK: u64 = 3;

    /// Server of a directory with a file and a symbolic link, and of files that are created.
    struct Server {
        device: Arc<File>,
        session: Session,
        attrs: HashMap<u64, Attr>,
        dump: BTreeMap<u32, Vec<u8>>,
        /// Receives the numbers, positions and data of retrievals.
        retrieved: Sender<(u64, u64, Vec<u8>)>,
        groups: Vec<Option<u32>>,
    }

    fn attr(ino: u64, mode: u32) -> Attr {
        let at = Time {
            seconds: 1_700_000_000,
            nanos: 5,
        };
        Attr {
            ino,
            size: 5,
            blocks: 8,
            atime: at,
            mtime: BORN,
            ctime: at,
            btime: Some(BORN),
            mode,
            nlink: 1,
            uid: 7,
            gid: GROUP,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    impl Server {
        fn new(device: Arc<File>, retrieved: Sender<(u64, u64, Vec<u8>)>) -> Server {
            let attrs = HashMap::from([
                (abi::FUSE_ROOT_ID, attr(abi::FUSE_ROOT_ID, 0o040_755)),
                (FILE, attr(FILE, 0o100_644)),
                (LINK, attr(LINK, 0o120_777)),
            ]);
            let (session, dump) = (Session::new(), BTreeMap::new());
            let groups = Vec::new();
            Server {
                device,
                session,
                attrs,
                dump,
                retrieved,
                groups,
            }
        }

        /// Serves until the file system is unmounted.
        fn run(mut self) -> Server {
            let mut buffer = vec![0; (1 << 20) + 4096];
            loop {
                let len = match (&*self.device).read(&mut buffer) {
                    Ok(len) => len,
                    Err(e) if e.raw_os_error() == Some(19) => return self,
                    Err(e) if e.raw_os_error() == Some(2) => continue,
                    Err(e) => panic!("reading /dev/fuse: {e}"),
                };
                let message = &buffer[..len];
                let request =
                    parse(message, &self.session).unwrap_or_else(|e| panic!("{e}: {message:02x?}"));
                self.dump
                    .entry(request.header.opcode)
                    .or_insert_with(|| message.to_vec());
                self.answer(&request);
            }
        }

        fn send(&self, head: &[u8], data: &[u8]) {
            let parts = [IoSlice::new(head), IoSlice::new(data)];
            match (&*self.device).write_vectored(&parts) {
                Ok(written) => assert_eq!(written, head.len() + data.len()),
                // The kernel sends the request again, after the notification that asks for it.
                Err(e) if e.raw_os_error() == Some(2) => {}
                Err(e) => panic!("the kernel refuses the reply {head:02x?}: {e}"),
            }
        }

        fn entry(&mut self, node: u64, mode: u32) -> Entry {
            let attr = *self.attrs.entry(node).or_insert_with(|| attr(node, mode));
            Entry {
                node,
                generation: 1,
                entry_ttl: TTL,
                attr_ttl: TTL,
                attr,
            }
        }

        fn new_entry(&mut self, mode: u32) -> Entry {
            self.entry(10 + self.attrs.len() as u64, mode)
        }

        fn answer(&mut self, request: &Request) {
            let Header { unique, node, .. } = request.header;
            let opened = Opened {
                handle: 77,
                flags: abi::FOPEN_DIRECT_IO,
                backing: 0,
            };
            match request.operation {
                Operation::Init(init) => {
                    let wanted = Wanted {
                        flags: abi::FUSE_MAX_PAGES
                            | abi::FUSE_POSIX_LOCKS
                            | abi::FUSE_FLOCK_LOCKS
                            | abi::FUSE_DO_READDIRPLUS
                            | abi::FUSE_READDIRPLUS_AUTO
                            | abi::FUSE_CREATE_SUPP_GROUP
                            | abi::FUSE_SETXATTR_EXT
                            | abi::FUSE_HANDLE_KILLPRIV_V2
                            | abi::FUSE_SECURITY_CTX,
                        max_write: 1 << 20,
                        ..Wanted::default()
                    };
                    let (session, answer) = negotiate(&init, &wanted).expect("a session");
                    self.session = session;
                    self.send(&reply::init(unique, &answer), &[]);
                }
                Operation::Lookup { name: b"file" } => {
                    let entry = self.entry(FILE, 0);
                    self.send(&reply::entry(unique, &entry), &[]);
                }
                Operation::Lookup { name: b"link" } => {
                    let entry = self.entry(LINK, 0);
                    self.send(&reply::entry(unique, &entry), &[]);
                }
                Operation::Lookup { .. } => self.send(&reply::negative_entry(unique, TTL), &[]),
                Operation::Forget { .. }
                | Operation::BatchForget(_)
                | Operation::Interrupt { .. } => {}
                Operation::NotifyReply { offset, data } => {
                    self.retrieved
                        .send((unique, offset, data.to_vec()))
                        .expect("the test waits");
                }
                Operation::GetAttr { .. } | Operation::SetAttr(_) => {
                    if let Operation::SetAttr(set) = request.operation {
                        let attr = self.attrs.get_mut(&node).expect("a known node");
                        attr.size = set.size.unwrap_or(attr.size);
                        attr.mode = set.mode.unwrap_or(attr.mode);
                        if let Some(SetTime::At(time)) = set.mtime {
                            attr.mtime = time;
                        }
                    }
                    self.send(&reply::attr(unique, &self.attrs[&node], TTL), &[]);
                }
                Operation::Statx { .. } => {
                    let statx = Statx {
                        attr: self.attrs[&node],
                        attributes: 0x10,
                        attributes_mask: 0x30,
                    };
                    self.send(&reply::statx(unique, &statx, TTL), &[]);
                }
                Operation::ReadLink => self.send(&reply::data_header(unique, 4), b"file"),
                Operation::Symlink { extensions, .. } => {
                    self.groups.push(extensions.group());
                    let entry = self.new_entry(0o120_777);
                    self.send(&reply::entry(unique, &entry), &[]);
                }
                Operation::MkNod {
                    mode, extensions, ..
                } => {
                    self.groups.push(extensions.group());
                    let entry = self.new_entry(mode);
                    self.send(&reply::entry(unique, &entry), &[]);
                }
                Operation::MkDir {
                    mode, extensions, ..
                } => {
                    self.groups.push(extensions.group());
                    let entry = self.new_entry(0o040_000 | mode);
                    self.send(&reply::entry(unique, &entry), &[]);
                }
                Operation::Link { node, .. } => {
                    let entry = self.entry(node, 0);
                    self.send(&reply::entry(unique, &entry), &[]);
                }
                Operation::Create(create) | Operation::TmpFile(create) => {
                    self.groups.push(create.extensions.group());
                    let entry = self.new_entry(create.mode);
                    self.send(&reply::create(unique, &entry, &opened), &[]);
                }
                Operation::Open { .. } => {
                    // Without direct I/O, so that data gets into the kernel's cache.
                    self.send(&reply::open(unique, &Opened { flags: 0, ..opened }), &[]);
                }
                Operation::OpenDir { .. } => {
                    self.send(&reply::open(unique, &Opened { flags: 0, ..opened }), &[]);
                }
                Operation::Read(read) => {
                    let data = b"hello";
                    let data = data.get(read.offset as usize..).unwrap_or_default();
                    self.send(&reply::data_header(unique, data.len()), data);
                }
                Operation::Write(write) => {
                    self.send(&reply::write(unique, write.data.len() as u32), &[]);
                }
                Operation::ReadDir { offset, size, .. } => {
                    let mut directory = reply::Directory::new(Vec::new(), size);
                    if offset == 0 {
                        assert!(directory.add(FILE, 1, 0o100_000, b"file"));
                        assert!(directory.add(LINK, 2, 0o120_000, b"link"));
                    }
                    self.send(&directory.finish(unique), &[]);
                }
                Operation::ReadDirPlus { offset, size, .. } => {
                    let mut directory = reply::DirectoryPlus::new(Vec::new(), size);
                    if offset == 0 {
                        assert!(directory.add(&self.entry(FILE, 0), 1, b"file"));
                        assert!(directory.add(&self.entry(LINK, 0), 2, b"link"));
                    }
                    self.send(&directory.finish(unique), &[]);
                }
                Operation::StatFs => {
                    let statfs = StatFs {
                        blocks: 1000,
                        free: 400,
                        available: 300,
                        files: 50,
                        free_files: 20,
                        block_bytes: 8192,
                        fragment_bytes: 4096,
                        name_bytes_max: 255,
                    };
                    self.send(&reply::statfs(unique, &statfs), &[]);
                }
                Operation::GetXattr {
                    name: b"user.a",
                    size: 0,
                } => {
                    self.send(&reply::xattr_size(unique, 3), &[]);
                }
                Operation::GetXattr {
                    name: b"user.a", ..
                } => {
                    self.send(&reply::data_header(unique, 3), b"xyz");
                }
                Operation::GetXattr { .. } => self.send(&reply::error(unique, 61), &[]),
                Operation::ListXattr { size: 0 } => self.send(&reply::xattr_size(unique, 7), &[]),
                Operation::ListXattr { .. } => {
                    self.send(&reply::data_header(unique, 7), b"user.a\0");
                }
                Operation::LSeek { offset, .. } => {
                    self.send(&reply::lseek(unique, offset + 4096), &[]);
                }
                Operation::CopyFileRange(copy) => {
                    let reply = reply::copied(unique, copy.length.min(3), copy.is_64);
                    self.send(&reply, &[]);
                }
                Operation::GetLock(lock) => {
                    let held = Lock {
                        kind: 1,
                        start: 3,
                        end: 9,
                        pid: 0,
                        ..lock
                    };
                    self.send(&reply::lock(unique, &held), &[]);
                }
                Operation::Poll { .. } => self.send(&reply::poll(unique, 1), &[]),
                Operation::Ioctl(ioctl) => {
                    assert_eq!(ioctl.out_size, 4, "FS_IOC_GETFLAGS");
                    let result = IoctlReply::default();
                    self.send(&reply::ioctl(unique, &result, 4), &0x40u32.to_ne_bytes());
                }
                Operation::Rename { .. }
                | Operation::Unlink { .. }
                | Operation::RmDir { .. }
                | Operation::Flush { .. }
                | Operation::Release { .. }
                | Operation::ReleaseDir { .. }
                | Operation::FSync { .. }
                | Operation::FSyncDir { .. }
                | Operation::SetXattr { .. }
                | Operation::RemoveXattr { .. }
                | Operation::Access { .. }
                | Operation::FAllocate { .. }
                | Operation::SetLock { .. } => self.send(&reply::empty(unique), &[]),
                _ => self.send(&reply::error(unique, 38), &[]),
            }
        }
    }

    /// Unmounts at the end, also of a test or a server that fails: no caller waits for it then.
    struct Mounted(PathBuf);

    impl Drop for Mounted {
        fn drop(&mut self) {
            let flags = UnmountFlags::DETACH | UnmountFlags::FORCE;
            let _ = rustix::mount::unmount(&self.0, flags);
        }
    }

    /// Uses each operation, and checks that the results are those of the server.
    fn use_files(dir: &Path) {
        let file = dir.join("file");
        let metadata = std::fs::metadata(&file).unwrap();
        assert_eq!(
            (metadata.ino(), metadata.size(), metadata.uid()),
            (FILE, 5, 7)
        );
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-5, 700_000_000));
        assert!(!dir.join("absent").exists());
        assert_eq!(
            std::fs::read_link(dir.join("link")).unwrap(),
            Path::new("file")
        );
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["file", "link"]);

        let open = File::options().read(true).write(true).open(&file).unwrap();
        let mut data = Vec::new();
        (&open).read_to_end(&mut data).unwrap();
        assert_eq!(data, b"hello");
        open.write_all_at(b"HELLO", 0).unwrap();
        open.sync_data().unwrap();
        open.set_len(5).unwrap();
        let then = std::time::UNIX_EPOCH - Duration::from_millis(1_500);
        open.set_times(std::fs::FileTimes::new().set_modified(then))
            .unwrap();
        let metadata = open.metadata().unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-2, 500_000_000));
        fs::fallocate(&open, fs::FallocateFlags::KEEP_SIZE, 4096, 8192).unwrap();
        assert_eq!(
            rustix::fs::seek(&open, rustix::fs::SeekFrom::Data(0)).unwrap(),
            4096
        );
        let copied = fs::copy_file_range(&open, Some(&mut 0), &open, Some(&mut 4096), 100);
        assert_eq!(copied.unwrap(), 3);
        fs::fcntl_lock(&open, fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        fs::fcntl_lock(&open, fs::FlockOperation::LockExclusive).unwrap();
        let wanted = rustix::process::Flock {
            start: 0,
            length: 100,
            pid: None,
            typ: rustix::process::FlockType::WriteLock,
            offset_type: rustix::process::FlockOffsetType::Set,
        };
        let held = rustix::process::fcntl_getlk(&open, &wanted)
            .unwrap()
            .unwrap();
        assert_eq!((held.start, held.length), (3, 7));
        fs::flock(&open, fs::FlockOperation::LockShared).unwrap();
        let mut polled = [rustix::event::PollFd::new(
            &open,
            rustix::event::PollFlags::IN,
        )];
        assert_eq!(rustix::event::poll(&mut polled, None).unwrap(), 1);
        assert_eq!(fs::ioctl_getflags(&open).unwrap().bits(), 0x40);
        drop(open);

        fs::setxattr(&file, "user.a", b"xyz", fs::XattrFlags::CREATE).unwrap();
        let mut value = [0; 10];
        assert_eq!(fs::getxattr_query(&file, "user.a").unwrap(), 3);
        assert_eq!(fs::getxattr(&file, "user.a", &mut value[..]).unwrap(), 3);
        assert_eq!(&value[..3], b"xyz");
        assert_eq!(fs::listxattr(&file, &mut value[..]).unwrap(), 7);
        fs::removexattr(&file, "user.a").unwrap();
        let access = fs::Access::READ_OK;
        fs::accessat(fs::CWD, &file, access, fs::AtFlags::empty()).unwrap();

        let mut created = File::create_new(dir.join("created")).unwrap();
        created.seek(SeekFrom::Start(3)).unwrap();
        created.write_all(b"data").unwrap();
        drop(created);
        std::fs::create_dir(dir.join("directory")).unwrap();
        symlink("target", dir.join("symlink")).unwrap();
        let fifo = fs::FileType::Fifo;
        fs::mknodat(
            fs::CWD,
            dir.join("fifo"),
            fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        std::fs::hard_link(&file, dir.join("hard")).unwrap();
        std::fs::rename(dir.join("hard"), dir.join("renamed")).unwrap();
        let (from, to) = (dir.join("renamed"), dir.join("again"));
        fs::renameat_with(fs::CWD, &from, fs::CWD, &to, fs::RenameFlags::NOREPLACE).unwrap();
        std::fs::remove_file(&to).unwrap();
        std::fs::remove_dir(dir.join("directory")).unwrap();
        File::open(dir).unwrap().sync_all().unwrap();
        let statvfs = fs::statvfs(dir).unwrap();
        assert_eq!(
            (statvfs.f_blocks, statvfs.f_bavail, statvfs.f_ffree),
            (1000, 300, 20)
        );
        assert_eq!((statvfs.f_bsize, statvfs.f_frsize), (8192, 4096));
    }

    /// Uses the operations that came after 7.31.
    fn use_newer(dir: &Path, minor: u32) {
        if minor >= 37 {
            let flags = OFlags::TMPFILE | OFlags::RDWR;
            fs::open(dir, flags, Mode::from_raw_mode(0o600)).expect("O_TMPFILE");
        }
        if minor >= 39 {
            let flags = fs::AtFlags::STATX_FORCE_SYNC;
            let all = fs::StatxFlags::BASIC_STATS | fs::StatxFlags::BTIME;
            let statx = fs::statx(fs::CWD, dir.join("file"), flags, all).unwrap();
            assert_eq!(statx.stx_mask & all.bits(), all.bits());
            let born = (statx.stx_btime.tv_sec, statx.stx_btime.tv_nsec);
            assert_eq!(born, (BORN.seconds, BORN.nanos));
            assert_eq!(statx.stx_ino, FILE);
        }
    }

    /// Sends each notification, and checks that the kernel accepts it.
    fn notify_kernel(device: &File, minor: u32) {
        let send = |head: &[u8], data: &[u8]| {
            (&*device).write_vectored(&[IoSlice::new(head), IoSlice::new(data)])
        };
        let accepted = |what: &str, message: &[u8]| {
            let written = send(message, &[]).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(written, message.len(), "{what}");
        };
        send(&notify::store(FILE, 0, 5), b"store").expect("store");
        accepted("retrieve", &notify::retrieve(9, FILE, 1, 3));
        accepted("inval_inode", &notify::inval_inode(FILE, 0, 0));
        accepted(
            "inval_entry",
            &notify::inval_entry(abi::FUSE_ROOT_ID, b"file"),
        );
        accepted("poll", &notify::poll(12345));
        let refused = send(&notify::inval_inode(999, 0, 0), &[]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(2), "an unknown node");
        let deleted = notify::delete(abi::FUSE_ROOT_ID, LINK, b"link");
        accepted("delete", &deleted);
        if minor >= 38 {
            accepted("expire", &notify::expire(abi::FUSE_ROOT_ID, b"created"));
        }
        if minor >= 40 {
            accepted("resend", &notify::resend());
        }
        if minor >= 44 {
            accepted("inc_epoch", &notify::inc_epoch());
        }
        if minor >= 45 {
            accepted("prune", &notify::prune(&[LINK, 999]));
        }
    }

    #[test]
    fn the_kernel_and_the_server_understand_each_other() {
        test_support::needs_root("to mount without fusermount3");
        let dir = tempfile::tempdir().unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = Arc::new(device.expect("needs /dev/fuse"));
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let options = CString::new(options).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("fuse-proto", dir.path(), "fuse", flags, &*options).unwrap();
        let mounted = Mounted(dir.path().into());
        let (sender, retrieved) = mpsc::channel();
        let server = Server::new(Arc::clone(&device), sender);
        let served = Mounted(dir.path().into());
        let server = std::thread::spawn(|| {
            let _served = served;
            server.run()
        });
        rustix::thread::set_thread_groups(&[rustix::fs::Gid::from_raw(GROUP)]).unwrap();

        use_files(dir.path());
        let minor = kernel_minor();
        use_newer(dir.path(), minor);
        // The nodes and names of the notifications are in the kernel's cache.
        std::fs::metadata(dir.path().join("file")).unwrap();
        notify_kernel(&device, minor);
        let retrieved = retrieved.recv_timeout(Duration::from_secs(60));
        assert_eq!(retrieved, Ok((9, 1, b"tor".to_vec())), "the retrieved data");
        drop(mounted);

        let server = server.join().expect("the server");
        assert_eq!(server.session.minor(), minor);
        if server.session.has(abi::FUSE_CREATE_SUPP_GROUP) {
            assert!(server.groups.contains(&Some(GROUP)), "{:?}", server.groups);
        }
        dump(&server.dump);
        // These need a block device, a crowd of requests, or a signal at the right moment.
        let rare = [
            abi::FUSE_INTERRUPT,
            abi::FUSE_BMAP,
            abi::FUSE_DESTROY,
            abi::FUSE_BATCH_FORGET,
            abi::FUSE_SETUPMAPPING,
            abi::FUSE_REMOVEMAPPING,
            abi::FUSE_SYNCFS,
            abi::CUSE_INIT,
        ];
        for &(name, opcode, since) in abi::OPCODES {
            let opcode = opcode as u32;
            // The newer copy replaces the older one.
            let replaced = opcode == abi::FUSE_COPY_FILE_RANGE && minor >= 45;
            if since <= minor && !rare.contains(&opcode) && !replaced {
                assert!(
                    server.dump.contains_key(&opcode),
                    "no {name} from the kernel"
                );
            }
        }
    }

    /// Returns the minor version that the kernel offers, from the INIT of a second mount.
    fn kernel_minor() -> u32 {
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let options = CString::new(options).unwrap();
        let flags = MountFlags::empty();
        rustix::mount::mount("fuse-proto", dir.path(), "fuse", flags, &*options).unwrap();
        let _mounted = Mounted(dir.path().into());
        let mut buffer = vec![0; abi::FUSE_MIN_READ_BUFFER];
        let len = (&device).read(&mut buffer).unwrap();
        match parse(&buffer[..len], &Session::new()).unwrap().operation {
            Operation::Init(init) => init.minor.min(abi::FUSE_KERNEL_MINOR_VERSION),
            other => panic!("{other:?} before INIT"),
        }
    }

    fn dump(requests: &BTreeMap<u32, Vec<u8>>) {
        let Some(path) = std::env::var_os("FUSE_PROTO_DUMP") else {
            return;
        };
        let mut text = String::new();
        for (opcode, bytes) in requests {
            let named = abi::OPCODES.iter().find(|o| o.1 == u64::from(*opcode));
            let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            text += &format!("{} {hex}\n", named.map_or("unknown", |o| o.0));
        }
        std::fs::write(path, text).unwrap();
    }
}
