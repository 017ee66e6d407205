"""The checks of scikit-learn for estimators, as far as a table of numbers can be a sequence."""

import pytest

from rdpgraph import learn

EXPECTED = {
    "check_estimators_overwrite_params": "joblib hashes tensors by their address",
    "check_estimators_unfitted": "a model that is not fitted is a ModelError",
    "check_dtype_object": "an entry that is no number is an EvidenceError",
    "check_n_features_in_after_fitting": "the message says columns, not features",
    "check_estimators_empty_data_messages": "the same, of no row or no column",
    "check_estimator_sparse_tag": "a sparse matrix is told as other things that are no numbers",
    "check_estimator_sparse_array": "the same",
    "check_estimator_sparse_matrix": "the same",
    "check_methods_sample_order_invariance": "rows are steps in order",
    "check_methods_subset_invariance": "rows are steps in order",
    "check_fit2d_1sample": "one step has no transitions: the table has lost all mass",
    "check_fit1d": "a list of numbers is one column",
    "check_fit2d_predict1d": "the same",
}


class OneSequence(learn.HMM):
    """A model whose second argument are targets, which it ignores, in the place of lengths."""

    def fit(self, X, y=None):
        return super().fit(X)

    def predict(self, X, lengths=None):
        return super().predict(X, lengths).numpy()

    def predict_proba(self, X, lengths=None):
        return super().predict_proba(X, lengths).numpy()

    def decode(self, X, lengths=None):
        return super().decode(X)

    def score(self, X, y=None):
        return super().score(X)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_checks_of_scikit_learn() -> None:
    # Imported here, because it takes a second, and the test is not short.
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    model = OneSequence(2, learn.Gaussian(covariance_prior=0.1), limit=2)
    results = checks.check_estimator(model, on_fail=None, on_skip=None)
    failed = {each["check_name"] for each in results if each["status"] == "failed"}
    assert failed <= EXPECTED.keys()
    assert sum(each["status"] == "passed" for each in results) > 20
