"""What can go wrong while serving; each error knows its HTTP status and how it is told.

RationaleError
└── ServiceError              status, slug and title; the message is meant for the caller
    ├── MalformedError        400  not JSON, or not a request of this protocol
    ├── UnauthenticatedError  401  no key, or none that is known
    ├── ForbiddenError        403  the key lacks a scope
    ├── UnknownModelError     404
    ├── NotExplainableError   404  the model is there, its explanation is not
    │   └── BrokenExplanationError  503  there is one, and it cannot be served
    ├── UnknownResourceError  404  no such explainer or reference set
    ├── ConflictError         409  not while others depend on it, or not under this name
    │   └── ErasedInputsError  409  recorded, and its inputs are erased
    ├── SlowBodyError         408  the body did not arrive in time
    ├── TooLargeError         413
    ├── AnswerTooLargeError   413  the request is not, but what it asks for
    ├── UnsupportedMediaError 415
    ├── InvalidInputError     422  names, shape, datatype, empty batch, values
    ├── InvalidExplainerError 422  a method, option or name that makes no sense
    ├── CompileFailedError    422  the compiler refuses, or goes over a limit
    ├── UndecidedError        422  a score without reasons that could be given
    ├── NotFiniteError        422  this input makes the model overflow
    ├── QueueFullError        429  come back after `retry_after_s`
    ├── NotOfferedError       501  a method of gRPC that a gateway does not have
    ├── RateLimitedError      429  this key asks too often
    ├── ModelFailedError      500  the log holds the cause, the answer does not
    ├── NotReadyError         503  come back after `retry_after_s`
    ├── StateUnavailableError 503  what is to survive a restart cannot be read or written
    └── DeadlineError         504
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from rationale.errors import RationaleError


class ServiceError(RationaleError):
    """An error with an answer for the caller."""

    status = 500
    slug: ClassVar[str] = "internal-error"
    title: ClassVar[str] = "The server failed"
    retry_after_s: int | None = None
    challenge: str | None = None  # HTTP's WWW-Authenticate

    def __init__(self, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s or self.retry_after_s


class MalformedError(ServiceError):
    status = 400
    slug = "malformed-request"
    title = "The request cannot be read"


class UnauthenticatedError(ServiceError):
    status = 401
    slug = "unauthenticated"
    title = "A key is needed"

    def __init__(self, message: str, *, invalid: bool = False) -> None:
        """Say whether a key was sent and is the reason (`invalid`)."""
        super().__init__(message)
        self.challenge = 'Bearer realm="rationale"' + (', error="invalid_token"' if invalid else "")


class ForbiddenError(ServiceError):
    status = 403
    slug = "forbidden"
    title = "The key does not allow this"

    def __init__(self, message: str, *, scope: str | None = None) -> None:
        """Name the `scope` that the key lacks."""
        super().__init__(message)
        lacking = f', error="insufficient_scope", scope="{scope}"' if scope else ""
        self.challenge = 'Bearer realm="rationale"' + lacking


class UnknownModelError(ServiceError):
    status = 404
    slug = "unknown-model"
    title = "No such model"


class NotExplainableError(ServiceError):
    status = 404
    slug = "not-explainable"
    title = "The model has no explanation"


class BrokenExplanationError(NotExplainableError):
    status = 503
    slug = "broken-explanation"
    title = "The model's explanation cannot be served"


class UnknownResourceError(ServiceError):
    status = 404
    slug = "unknown-resource"
    title = "No such resource"


class ConflictError(ServiceError):
    status = 409
    slug = "conflict"
    title = "Not in the present state"


class ErasedInputsError(ConflictError):
    """A key's decisions are there, and inputs of theirs are erased: nobody can compare the instances.

    Attributes:
        decisions: as they were recorded (`RecordedDecision`), without what was erased.
    """

    def __init__(self, text: str, decisions: Sequence[Any]) -> None:
        super().__init__(text)
        self.decisions = decisions


class SlowBodyError(ServiceError):
    status = 408
    slug = "slow-body"
    title = "The request took too long to arrive"


class TooLargeError(ServiceError):
    status = 413
    slug = "too-large"
    title = "The request is too large"


class AnswerTooLargeError(ServiceError):
    status = 413
    slug = "answer-too-large"
    title = "The answer would be too large"


class UnsupportedMediaError(ServiceError):
    status = 415
    slug = "unsupported-media-type"
    title = "The content type is not supported"


class InvalidInputError(ServiceError):
    status = 422
    slug = "invalid-input"
    title = "The input does not fit the model"


class InvalidExplainerError(ServiceError):
    status = 422
    slug = "invalid-explainer"
    title = "Such an explainer cannot be made"


class CompileFailedError(ServiceError):
    """An explainer's status tells it: whoever asked has been answered by then."""

    status = 422
    slug = "compile-failed"
    title = "The explainer could not be compiled"


class UndecidedError(ServiceError):
    """There is a score, and no reasons that could be given for it: nothing is decided then."""

    status = 422
    slug = "no-reasons"
    title = "No reasons can be given for this decision"


class NotFiniteError(ServiceError):
    """The model answered NaN or infinity. It follows from the input alone, so a retry cannot help: no 500."""

    status = 422
    slug = "not-finite"
    title = "The model has no finite answer to this input"


class QueueFullError(ServiceError):
    status = 429
    slug = "queue-full"
    title = "Too many requests are waiting"
    retry_after_s = 1


class NotOfferedError(ServiceError):
    status = 501
    slug = "not-offered"
    title = "The server does not do this"


class RateLimitedError(ServiceError):
    status = 429
    slug = "rate-limited"
    title = "Too many requests from this key"
    retry_after_s = 1


class ModelFailedError(ServiceError):
    status = 500
    slug = "model-failed"
    title = "The model failed"


class NotReadyError(ServiceError):
    status = 503
    slug = "not-ready"
    title = "The server is not ready"
    retry_after_s = 1


class StateUnavailableError(ServiceError):
    status = 503
    slug = "state-unavailable"
    title = "The gateway's records are not available"


class DeadlineError(ServiceError):
    status = 504
    slug = "deadline-exceeded"
    title = "The answer came too late"
