"""The configuration files of the test cluster. Everything listens on 127.0.0.1 only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

DATANODES: Final = ("datanode1", "datanode2")
BLOCK_BYTES: Final = 1 << 20

_LOGGING: Final = """\
log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.out
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
log4j.logger.BlockStateChange=WARN
"""


def write_settings(folder: Path, *, rpc_port: int, http_port: int, webhdfs: bool) -> None:
    """Writes one configuration folder per server below ``folder``: ``namenode``, ``datanode1``, ``datanode2``.

    Args:
        folder: The cluster's folder; data go there too.
        rpc_port: The NameNode's port for clients.
        http_port: The NameNode's port for WebHDFS and for its state.
        webhdfs: Whether WebHDFS is served.
    """
    core = {
        "fs.defaultFS": f"hdfs://127.0.0.1:{rpc_port}",
        "hadoop.tmp.dir": f"{folder}/tmp",
        # No shell is started to ask for the groups of a user.
        "hadoop.user.group.static.mapping.overrides": "root=root;alice=alice;dr.who=;",
        "ipc.client.connect.retry.interval": "200",
        "ipc.client.connect.max.retries": "100",
        "hadoop.http.staticuser.user": "nobody",
    }
    shared = {
        "dfs.replication": "2",
        "dfs.blocksize": str(BLOCK_BYTES),
        "dfs.namenode.fs-limits.min-block-size": "1024",
        "dfs.webhdfs.enabled": str(webhdfs).lower(),
        "dfs.namenode.rpc-address": f"127.0.0.1:{rpc_port}",
        "dfs.namenode.http-address": f"127.0.0.1:{http_port}",
        "dfs.namenode.name.dir": f"file://{folder}/namenode-data",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.namenode.handler.count": "8",
        # Writable as soon as all blocks are reported after a restart.
        "dfs.namenode.safemode.extension": "0",
        # A DataNode that was killed or stopped by a test is not given up meanwhile: it is back before 70 s are over.
        "dfs.namenode.heartbeat.recheck-interval": "30000",
        "dfs.heartbeat.interval": "1",
        # WebHDFS reads by a client inside of the DataNode, which would wait for seconds before it tries again.
        "dfs.client.retry.window.base": "10",
        "dfs.client.max.block.acquire.failures": "1",
        "dfs.namenode.edits.noeditlogchannelflush": "true",
    }
    for name in ("namenode", *DATANODES):
        own = dict(shared)
        if name != "namenode":
            own |= {
                "dfs.datanode.data.dir": f"file://{folder}/{name}-data",
                "dfs.datanode.address": "127.0.0.1:0",
                "dfs.datanode.http.address": "127.0.0.1:0",
                "dfs.datanode.ipc.address": "127.0.0.1:0",
                "dfs.datanode.hostname": "127.0.0.1",
                "dfs.datanode.scan.period.hours": "-1",
                "dfs.datanode.max.transfer.threads": "4096",
                "dfs.blockreport.initialDelay": "0",
            }
        conf = folder / "conf" / name
        # The servers look for the folders of their web pages on the class path; empty ones will do.
        for pages in ("hdfs", "datanode"):
            web = conf / "webapps" / pages / "WEB-INF"
            web.mkdir(parents=True)
            (web / "web.xml").write_text("<web-app/>\n")
        (conf / "core-site.xml").write_text(as_xml(core))
        (conf / "hdfs-site.xml").write_text(as_xml(own))
        (conf / "log4j.properties").write_text(_LOGGING)
    (folder / "tmp").mkdir()


def as_xml(properties: Mapping[str, str]) -> str:
    """A Hadoop configuration file."""
    lines = [
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in properties.items()
    ]
    return "<?xml version='1.0'?>\n<configuration>\n" + "\n".join(lines) + "\n</configuration>\n"
