"""Recourse for the decisions of an entry: flip points, and plans within the profile's rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from rationale.decisions.decide import find_knock_outs
from rationale.decisions.rows import Tensors, profile_of
from rationale.recourse.applicant import Answered, Applicant, Entry, Places, places_of
from rationale.recourse.cells import CellSpace, TreeLevers
from rationale.recourse.flip_points import FlipPoint, flip_points
from rationale.recourse.levers import FREE, Lever, Values, levers_of
from rationale.recourse.plans import Plan, plans
from rationale.recourse.points import PointSpace, point_space
from rationale.schema.form import FormField
from rationale.schema.manifest import Manifest
from rationale.schema.profile import Action, DecisionProfile
from rationale.trees.boxes import Boxes

MOST_ERROR = 1e-3  # of a margin: nearer to 0 or 1 a score says too little of it


@dataclass(frozen=True)
class Recourse:
    """Flip points and plans for one decision.

    Attributes:
        search: "complete" if there is provably no plan within the rules; "heuristic" if the search may have
            missed a plan, or a cheaper one.
        note: the reason why there are no plans, if there are none.
    """

    flip_points: tuple[FlipPoint, ...] = ()
    plans: tuple[Plan, ...] = ()
    search: Literal["complete", "heuristic"] = "heuristic"
    note: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return its members as JSON has them; null is an open end of a region."""
        points = [{**vars(p), "region": None if p.region is None else [*p.region]} for p in self.flip_points]
        each = [
            {**vars(p), "changes": {**p.changes}, "regions": {k: [*r] for k, r in p.regions.items()}}
            for p in self.plans
        ]
        return {"flip_points": points, "plans": each, "search": self.search, "note": self.note}


@dataclass(frozen=True, eq=False)
class RecourseFinder:
    """The search for recourse of one entry.

    Attributes:
        manifest: the manifest of the compiled entry.
        form: the description of each feature of the model, and of those that only knock-outs read.
        boxes: the leaves of the trees whose score decides, over the features of `manifest.trees`; None for
            another model. A larger score is more adverse.
    """

    manifest: Manifest
    form: tuple[FormField, ...]
    boxes: Boxes | None = None

    def find(self, entry: Entry, inputs: Tensors, values: Values, answer: Answered) -> Recourse:
        """Return flip points, and plans if the decision is no approval.

        Args:
            entry: the functions that score and decide rows.
            inputs: the applicant's row of each input, [1, …].
            values: its features, and what knock-outs read; see `decisions.rows.feature_values`.
            answer: the entry's decision on it.
        """
        applicant = self.applicant(entry, inputs, values, answer)
        points = self.flip_points(applicant)
        if answer.decision == "approve":
            return Recourse(points, note="The decision is an approval.")
        if not self.profile.actionable:
            return Recourse(points, note="The decision profile does not say what an applicant can change.")
        return replace(self.plans(applicant), flip_points=points)

    def applicant(self, entry: Entry, inputs: Tensors, values: Values, answer: Answered) -> Applicant:
        """Return an applicant; see `find`."""
        is_logistic = self.boxes is not None and self.boxes.is_logistic
        return Applicant(entry, self.manifest, self.places, inputs, values, answer, is_logistic)

    def flip_points(self, applicant: Applicant) -> tuple[FlipPoint, ...]:
        """Return the flip point of each feature or group that has one."""
        return tuple(flip_points(applicant, self._flip_spaces(applicant)))

    def plans(self, applicant: Applicant) -> Recourse:
        """Return the plans for an applicant who is not approved."""
        levers = [lever for lever in self.actionable if lever.can_change(applicant.values)]
        changeable = {name for lever in levers for name in lever.members}
        for rule in find_knock_outs(self.profile, applicant.values):
            if rule.feature not in changeable:
                note = f"A knock-out declines by '{rule.feature}', which the applicant cannot change."
                return Recourse(search="complete", note=note)
        space: CellSpace | PointSpace
        if self.actionable_trees is not None and applicant.error <= MOST_ERROR:
            space = self.actionable_trees.space(applicant).reduced()
        else:
            space = point_space(applicant, levers, self.fields)
        if found := plans(applicant, space):
            return Recourse(plans=tuple(found))
        if space.is_impossible():
            return Recourse(search="complete", note="No changes within the rules lead to an approval.")
        return Recourse(note="The search found no changes that lead to an approval.")

    def _flip_spaces(self, applicant: Applicant) -> list[CellSpace | PointSpace]:
        groups = [lever for lever in self.groups if lever.can_change(applicant.values)]
        members = {name for lever in groups for name in lever.members}
        trees = self.tree_features if applicant.error <= MOST_ERROR else None
        features = self.features if trees is None else self.other_features
        others = [lever for lever in features if lever.name not in members]
        spaces = list[CellSpace | PointSpace]()
        if trees is not None:
            spaces.append(trees.space(applicant))
        if groups or others:
            spaces.append(point_space(applicant, [*groups, *others], self.fields))
        return spaces

    @cached_property
    def profile(self) -> DecisionProfile:
        return profile_of(self.manifest).profile

    @cached_property
    def fields(self) -> dict[str, FormField]:
        return {field.name: field for field in self.form}

    @cached_property
    def places(self) -> Places:
        return places_of(self.manifest)

    @cached_property
    def actionable(self) -> tuple[Lever, ...]:
        """The levers that the profile names."""
        return self._levers(self.profile.actionable)

    @cached_property
    def actionable_trees(self) -> TreeLevers | None:
        """The levers that the profile names, if each of them is a feature of the trees."""
        trees = self._of_trees(self.actionable)
        return trees if trees is not None and len(trees.levers) == len(self.actionable) else None

    @cached_property
    def features(self) -> tuple[Lever, ...]:
        """A lever for every feature but those that are protected."""
        return self._levers({name: FREE for name in self.fields if name not in self.profile.protected})

    @cached_property
    def tree_features(self) -> TreeLevers | None:
        """Features outside of groups that the trees read."""
        grouped = {name for rule in self.profile.groups.values() for name in rule.members}
        return self._of_trees([lever for lever in self.features if lever.name not in grouped])

    @cached_property
    def other_features(self) -> tuple[Lever, ...]:
        """All other features."""
        in_trees = {lever.name for lever in self.tree_features.levers} if self.tree_features else set()
        return tuple(lever for lever in self.features if lever.name not in in_trees)

    @cached_property
    def groups(self) -> tuple[Lever, ...]:
        """A lever for every group without a protected feature."""
        protected = {*self.profile.protected}
        rules = self.profile.groups.items()
        return self._levers({name: FREE for name, rule in rules if not protected & {name, *rule.members}})

    def _of_trees(self, levers: Sequence[Lever]) -> TreeLevers | None:
        """Select the levers that change a feature of the trees; return None if there are none."""
        trees = self.manifest.trees
        if self.boxes is None or trees is None:
            return None
        own = [
            each
            for each in levers
            if each.is_number and each.name in trees.features and not each.action.moves
        ]
        specs = {spec.name: spec.datatype for spec in self.manifest.inputs}
        datatypes = tuple(specs[self.places[each.name][0]] for each in own)
        return TreeLevers(self.boxes, trees.features, tuple(own), datatypes) if own else None

    def _levers(self, actions: Mapping[str, Action]) -> tuple[Lever, ...]:
        references = self.manifest.references
        spreads = references.spreads if references else ()
        scales = {spread.feature: spread.scale for spread in spreads if spread.scale is not None}
        return tuple(levers_of(actions, self.profile, self.fields, scales))
