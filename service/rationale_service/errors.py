"""Errors of serving; each knows its HTTP status, slug and title.

RationaleError
└── ServiceError              status, slug and title; the message is meant for the caller
    ├── MalformedError        400  not JSON, or not a request of this protocol
    ├── UnauthenticatedError  401  no key, or an unknown one
    ├── ForbiddenError        403  the key lacks a scope
    ├── UnknownModelError     404
    ├── NotExplainableError   404  the model exists, but has no explanation
    │   └── BrokenExplanationError  503  the model has an explanation that cannot be served
    ├── UnknownResourceError  404  no such explainer or reference set
    ├── ConflictError         409  others depend on it, or the name is in use
    │   └── ErasedInputsError  409  the decision is recorded, but its inputs are erased
    ├── SlowBodyError         408  the body did not arrive in time
    ├── TooLargeError         413
    ├── AnswerTooLargeError   413  the request is small enough, its answer is not
    ├── UnsupportedMediaError 415
    ├── InvalidInputError     422  names, shape, datatype, empty batch, values
    ├── InvalidExplainerError 422  an invalid method, option or name
    ├── CompileFailedError    422  the compiler refuses, or exceeds a limit
    ├── UndecidedError        422  no reasons can be given for the score
    ├── NotFiniteError        422  this input makes the model overflow
    ├── QueueFullError        429  come back after `retry_after_s`
    ├── NotOfferedError       501  a gRPC method that the gateway does not implement
    ├── RateLimitedError      429  this key sends requests too often
    ├── ModelFailedError      500  the log has the cause, the answer does not
    ├── NotReadyError         503  come back after `retry_after_s`
    ├── StateUnavailableError 503  the persistent state cannot be read or written
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
        """Set the challenge; `invalid` if the caller sent a key that the gateway rejects."""
        super().__init__(message)
        self.challenge = 'Bearer realm="rationale"' + (', error="invalid_token"' if invalid else "")


class ForbiddenError(ServiceError):
    status = 403
    slug = "forbidden"
    title = "The key does not allow this"

    def __init__(self, message: str, *, scope: str | None = None) -> None:
        """Set the challenge, which names the missing `scope`."""
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
    """An idempotency key's decisions exist, but their inputs are erased: nobody can compare the instances.

    Attributes:
        decisions: the recorded decisions (`RecordedDecision`) without the erased inputs.
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
    """A failed compile. The explainer's status reports it: the request was answered earlier."""

    status = 422
    slug = "compile-failed"
    title = "The explainer could not be compiled"


class UndecidedError(ServiceError):
    """A score for which no reasons can be given: the gateway does not decide."""

    status = 422
    slug = "no-reasons"
    title = "No reasons can be given for this decision"


class NotFiniteError(ServiceError):
    """An answer of NaN or infinity. It follows from the input alone, so a retry cannot help: no 500."""

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
