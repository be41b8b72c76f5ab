"""A server that speaks like S3 (moto) on loopback. It refuses what is not signed as botocore would sign it: moto by itself
takes any signature.

    with S3Server(keys={"id": "key"}) as s3:
        s3.url                      # for ?endpoint=
        s3.client.list_buckets()    # boto3
        s3.refused                  # requests with another signature
"""
import hashlib
import io
import logging
import re
import threading

import boto3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

REGION = "eu-central-1"


def wanted_signature(environ, body, keys):
    """What botocore computes for this request, and what the request says."""
    said = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, ?SignedHeaders=([^,]+), ?"
                        r"Signature=([0-9a-f]{64})", environ.get("HTTP_AUTHORIZATION", ""))
    if not said or said[1] not in keys or said[3] != REGION:
        return "", "none"
    signed = said[4].split(";")
    headers = {}
    for name in signed:
        key = name.upper().replace("-", "_")
        headers[name] = environ.get("HTTP_" + key) or environ.get(key, "")
    if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(signed):
        return "", "signs too little"
    if environ.get("HTTP_X_AMZ_SECURITY_TOKEN") and "x-amz-security-token" not in signed:
        return "", "does not sign the token"
    if headers["x-amz-content-sha256"] != hashlib.sha256(body).hexdigest():
        return "", "another body"
    query = environ.get("QUERY_STRING", "")
    url = f"http://{headers['host']}{environ['PATH_INFO']}" + (f"?{query}" if query else "")
    request = AWSRequest(environ["REQUEST_METHOD"], url, headers, body)
    request.context["timestamp"] = headers["x-amz-date"]
    auth = S3SigV4Auth(Credentials(said[1], keys[said[1]]), "s3", REGION)
    return auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request), said[5]


class S3Server:
    def __init__(self, keys):
        self.keys = keys
        self.refused = self.accepted = 0
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        moto = DomainDispatcherApplication(create_backend_app)

        def checked(environ, start):
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = io.BytesIO(body)
            if environ.get("HTTP_USER_AGENT", "").startswith("Boto3/"):
                return moto(environ, start)
            wanted, said = wanted_signature(environ, body, self.keys)
            if wanted != said:
                self.refused += 1
                start("403 Forbidden", [("Content-Type", "application/xml")])
                return [b"<Error><Code>SignatureDoesNotMatch</Code></Error>"]
            self.accepted += 1
            return moto(environ, start)

        self.server = make_server("127.0.0.1", 0, checked, threaded=True)
        self.port = self.server.port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.client = boto3.client("s3", endpoint_url=self.url, region_name=REGION, aws_access_key_id="test",
                                   aws_secret_access_key="test")

    def make_bucket(self, name):
        """moto keeps one set of buckets in a process; this one is empty."""
        if name not in [b["Name"] for b in self.client.list_buckets()["Buckets"]]:
            self.client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
        for one in self.client.list_objects_v2(Bucket=name).get("Contents", []):
            self.client.delete_object(Bucket=name, Key=one["Key"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
