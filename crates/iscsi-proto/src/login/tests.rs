//! Logins against a scripted target.

use crate::bytes::hex;
use crate::chap::Algorithm;
use crate::login::{Credentials, Kind, Login, LoginConfig, LoginResult, Mutual};
use crate::params::{DigestPolicy, OfferedParams, Params};
use crate::pdu::{Bhs, opcode, padding};
use crate::text::{binary, pairs};
use crate::{ProtocolError, Result};
use block_testing::Random;

const ISID: [u8; 6] = [0x80, 1, 2, 3, 4, 5];
const TRANSIT: u8 = 0x80;
const CONTINUE: u8 = 0x40;

fn config<'a>(wanted: &'a OfferedParams, credentials: Option<Credentials<'a>>) -> LoginConfig<'a> {
    LoginConfig {
        initiator: "iqn.i",
        kind: Kind::Normal {
            target: "iqn.t",
            lun: [0, 1, 0, 0, 0, 0, 0, 0],
        },
        isid: ISID,
        credentials,
        offered: wanted,
    }
}

/// Builds a login response from flags (with stages), status and text.
fn response(flags: u8, status: [u8; 2], text: &str) -> Vec<u8> {
    let mut bhs = Bhs::new(opcode::LOGIN_RESPONSE, flags);
    bhs.set_data_bytes(text.len() as u32);
    bhs.set_u32(24, 70);
    bhs.set_u32(28, 1);
    bhs.set_u32(32, 32);
    bhs.set(36, &status);
    let mut out = bhs.0.to_vec();
    out.extend(text.as_bytes());
    out.resize(out.len() + padding(text.len() as u32), 0);
    out
}

type Pairs = Vec<(String, String)>;

/// Parses the single request in `output` into flags and pairs.
fn request(output: &[u8]) -> (u8, Pairs) {
    let bhs = Bhs(output[..48].try_into().unwrap());
    assert_eq!((output[0], bhs.u32(24)), (0x43, 1));
    assert_eq!(output[8..14], ISID);
    let len = bhs.data_bytes() as usize;
    assert_eq!(output.len(), 48 + len.next_multiple_of(4));
    let text = pairs(&output[48..48 + len]).unwrap();
    let text = text.into_iter().map(|(k, v)| (k.into(), v.into()));
    (bhs.flags(), text.collect())
}

fn value<'p>(pairs: &'p [(String, String)], key: &str) -> &'p str {
    &pairs.iter().find(|(k, _)| k == key).expect(key).1
}

/// Feeds a response in pieces of `step` bytes and asserts that every byte is consumed.
fn feed(login: &mut Login<'_>, response: &[u8], step: usize) -> Result<()> {
    for piece in response.chunks(step) {
        let mut at = 0;
        while at < piece.len() {
            let taken = login.handle_input(&piece[at..])?;
            assert!(taken > 0);
            at += taken;
        }
    }
    Ok(())
}

fn params_of(login: &mut Login<'_>) -> Params {
    match login.take_outcome() {
        Some(LoginResult::LoggedIn(session)) => session.params().clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_request_is_that_of_the_standard() {
    let wanted = OfferedParams::default();
    let output = Login::new(config(&wanted, None)).take_output();
    // Opcode 3, immediate; transit from security to operational; version 0; 72 bytes of data; ISID;
    // TSIH and task tag 0; CID 0; CmdSN 1; ExpStatSN 0.
    let header = "43810000000000488001020304050000000000000000000000000001000000000000000000000000\
                  0000000000000000";
    assert_eq!(hex(&output[..48]), header);
    let text = b"InitiatorName=iqn.i\0SessionType=Normal\0TargetName=iqn.t\0AuthMethod=None\0";
    let text_len = usize::from(output[7]);
    assert_eq!(text_len, text.len());
    assert_eq!(&output[48..], text);
}

#[test]
fn a_login_without_a_proof_agrees_on_parameters_however_it_is_cut() {
    let wanted = OfferedParams {
        header_digest: DigestPolicy::Prefer,
        ..OfferedParams::default()
    };
    for step in [1, 7, 48, 4096] {
        let mut login = Login::new(config(&wanted, None));
        login.take_output();
        let answer = response(
            TRANSIT | 1,
            [0, 0],
            "TargetPortalGroupTag=3\0AuthMethod=None\0",
        );
        feed(&mut login, &answer, step).unwrap();
        let (flags, offer) = request(&login.take_output());
        assert_eq!(flags, TRANSIT | 1 << 2 | 3);
        assert_eq!(value(&offer, "HeaderDigest"), "CRC32C,None");
        assert_eq!(value(&offer, "ErrorRecoveryLevel"), "0");
        // Before it transits, the target sends keys of its own.
        let answer = response(
            1 << 2,
            [0, 0],
            "HeaderDigest=CRC32C\0X-odd=1\0InitialR2T=Yes\0",
        );
        feed(&mut login, &answer, step).unwrap();
        let (flags, text) = request(&login.take_output());
        assert_eq!(
            (flags, value(&text, "X-odd")),
            (TRANSIT | 1 << 2 | 3, "NotUnderstood")
        );
        let answer = response(
            TRANSIT | 1 << 2 | 3,
            [0, 0],
            "MaxRecvDataSegmentLength=4096\0",
        );
        feed(&mut login, &answer, step).unwrap();
        let params = params_of(&mut login);
        assert!(params.header_digest && !params.data_digest && params.initial_r2t);
        assert_eq!(
            (params.max_send_data_segment, params.portal_group),
            (4096, Some(3))
        );
        assert!(login.take_output().is_empty());
    }
}

#[test]
fn text_over_several_responses_is_put_together() {
    let wanted = OfferedParams::default();
    let mut login = Login::new(config(&wanted, None));
    login.take_output();
    feed(&mut login, &response(CONTINUE, [0, 0], "AuthMe"), 4096).unwrap();
    let (flags, text) = request(&login.take_output());
    assert_eq!((flags, text.len()), (0, 0));
    feed(
        &mut login,
        &response(TRANSIT | 1, [0, 0], "thod=None\0"),
        4096,
    )
    .unwrap();
    assert_eq!(request(&login.take_output()).0, TRANSIT | 1 << 2 | 3);
}

const SECRET: &[u8] = b"correct horse";
const MUTUAL: Mutual<'static> = Mutual {
    secret: b"battery staple",
    id: 9,
    challenge: [7; 16],
};

/// Runs CHAP up to the target's proof. Returns the initiator's CHAP keys and its next request.
fn chap(mutual: bool, number: &str, proof: &[u8]) -> Result<(Pairs, Vec<u8>)> {
    let wanted = OfferedParams::default();
    let credentials = Credentials {
        user: "joe",
        secret: SECRET,
        md5_only: false,
        mutual: mutual.then_some(MUTUAL),
    };
    let mut login = Login::new(config(&wanted, Some(credentials)));
    let (flags, text) = request(&login.take_output());
    let methods = if mutual { "CHAP" } else { "CHAP,None" };
    assert_eq!((flags, value(&text, "AuthMethod")), (0, methods));
    feed(&mut login, &response(0, [0, 0], "AuthMethod=CHAP\0"), 4096)?;
    assert_eq!(value(&request(&login.take_output()).1, "CHAP_A"), "7,5");
    let challenge = format!("CHAP_A={number}\0CHAP_I=200\0CHAP_C=0x0102030405\0");
    feed(&mut login, &response(0, [0, 0], &challenge), 4096)?;
    let (flags, said) = request(&login.take_output());
    assert_eq!(flags, TRANSIT | 1);
    let proof = if mutual {
        format!("CHAP_N=target\0CHAP_R=0x{}\0", hex(proof))
    } else {
        String::new()
    };
    feed(&mut login, &response(TRANSIT | 1, [0, 0], &proof), 4096)?;
    Ok((said, login.take_output()))
}

#[test]
fn chap_proves_the_initiator_and_checks_the_target() {
    for (number, algorithm) in [("5", Algorithm::Md5), ("7", Algorithm::Sha256)] {
        let proof = algorithm.response(MUTUAL.id, MUTUAL.secret, &MUTUAL.challenge);
        for mutual in [false, true] {
            let (said, next) = chap(mutual, number, &proof).unwrap();
            let expected = algorithm.response(200, SECRET, &[1, 2, 3, 4, 5]);
            assert_eq!(value(&said, "CHAP_N"), "joe");
            assert_eq!(binary(value(&said, "CHAP_R"), 64), Some(expected));
            assert_eq!(said.len(), if mutual { 4 } else { 2 });
            assert_eq!(request(&next).0, TRANSIT | 1 << 2 | 3);
        }
        let mut wrong = proof.clone();
        wrong[3] ^= 1;
        for bad in [&wrong[..], &proof[1..], b"\0"] {
            let result = chap(true, number, bad);
            assert!(
                matches!(result, Err(ProtocolError::Untrusted(_))),
                "{result:?}"
            );
        }
    }
    assert!(
        chap(false, "6", &[]).is_err(),
        "an algorithm that was not offered"
    );
}

#[test]
fn a_target_cannot_talk_its_way_around_the_proof() {
    let wanted = OfferedParams::default();
    let credentials = |mutual| Credentials {
        user: "joe",
        secret: SECRET,
        md5_only: true,
        mutual,
    };
    // No CHAP although mutual CHAP is required.
    let mut login = Login::new(config(&wanted, Some(credentials(Some(MUTUAL)))));
    let result = feed(
        &mut login,
        &response(TRANSIT | 1, [0, 0], "AuthMethod=None\0"),
        4096,
    );
    assert!(matches!(result, Err(ProtocolError::Untrusted(_))));
    // Reflected challenge: the target wants our own proof computed for it.
    let mut login = Login::new(config(&wanted, Some(credentials(Some(MUTUAL)))));
    feed(&mut login, &response(0, [0, 0], "AuthMethod=CHAP\0"), 4096).unwrap();
    let reflected = format!("CHAP_A=5\0CHAP_I=9\0CHAP_C=0x{}\0", hex(&[7; 16]));
    let result = feed(&mut login, &response(0, [0, 0], &reflected), 4096);
    assert!(matches!(result, Err(ProtocolError::Untrusted(_))));
    // The target skips the proof.
    let mut login = Login::new(config(&wanted, Some(credentials(None))));
    feed(&mut login, &response(0, [0, 0], "AuthMethod=CHAP\0"), 4096).unwrap();
    assert!(
        feed(
            &mut login,
            &response(TRANSIT | 1 << 2 | 3, [0, 0], ""),
            4096
        )
        .is_err()
    );
}

#[test]
fn redirections_and_refusals_are_told() {
    let wanted = OfferedParams::default();
    let mut login = Login::new(config(&wanted, None));
    let moved = response(0, [1, 1], "TargetAddress=10.0.0.9:3261,1\0");
    feed(&mut login, &moved, 5).unwrap();
    match login.take_outcome() {
        Some(LoginResult::Redirect { address, permanent }) => {
            assert_eq!((address.as_str(), permanent), ("10.0.0.9:3261", false));
        }
        other => panic!("{other:?}"),
    }
    for (class, detail, text) in [
        (2, 1, "authentication"),
        (2, 3, "no such"),
        (3, 2, "resources"),
    ] {
        let mut login = Login::new(config(&wanted, None));
        let error = feed(&mut login, &response(0, [class, detail], ""), 4096).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn a_login_ends_whatever_the_target_says() {
    let wanted = OfferedParams::default();
    let mut login = Login::new(config(&wanted, None));
    let again = response(CONTINUE, [0, 0], "A=");
    let error = (0..1000).find_map(|_| feed(&mut login, &again, 4096).err());
    assert!(error.is_some(), "it goes round in circles");
    let mut random = Random::new(1);
    for round in 0..20_000u32 {
        let mut login = Login::new(config(&wanted, None));
        let mut stream = response(TRANSIT | 1, [0, 0], "AuthMethod=None\0HeaderDigest=None\0");
        stream.extend(response(
            TRANSIT | 1 << 2 | 3,
            [0, 0],
            "MaxBurstLength=512\0",
        ));
        for _ in 0..1 + round % 4 {
            let at = random.below(stream.len() as u64) as usize;
            stream[at] = random.next_u64() as u8;
        }
        let mut rest = &stream[..];
        while let Ok(taken @ 1..) = login.handle_input(rest) {
            rest = &rest[taken..];
        }
    }
}
