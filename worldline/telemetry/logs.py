"""Logs: structlog on stderr, JSON or console, each line with the trace it belongs to."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from worldline.telemetry.spans import current_trace_id

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logs(service: str, log_format: str = "console", log_level: str = "info") -> None:
    """Send structlog's and the standard library's records to stderr in one form.

    `log_format` is `console` or `json`, `log_level` the least level shown. stdout stays free for
    what a command answers. Calling it again replaces the former configuration.
    """
    level = _LEVELS[log_level]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _stamp(service),
    ]
    rendering: list[Processor] = (
        [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(default=str)]
        if log_format == "json"
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        # Loggers live at module level and may be used before this: look the settings up anew.
        cache_logger_on_first_use=False,
    )
    _configure_standard_library(shared, rendering, level)


def _configure_standard_library(
    shared: list[Processor], rendering: list[Processor], level: int
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    # Libraries talk a lot below warning.
    root.setLevel(max(level, logging.WARNING))
    # A stream that a client abandons is closed from another context than the one it began in;
    # OpenTelemetry logs that as an error with a traceback though nothing is wrong.
    logging.getLogger("opentelemetry.context").setLevel(logging.CRITICAL)


def _stamp(service: str) -> Processor:
    def stamp(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        trace_id = current_trace_id()
        if trace_id:
            event["trace_id"] = trace_id
        return event

    return stamp
