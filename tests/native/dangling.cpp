// What reads memory of an owner does not compile for an owner that is gone by then (test_capsedge_hpp.py).
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "capsedge.hpp"

using capsedge::Error;
using capsedge::Prediction;
using capsedge::PredictOptions;
using capsedge::Result;
using capsedge::Session;
using capsedge::View;

// allows<T>(f): whether f(std::declval<T>()) compiles.
template <typename T, typename F>
constexpr bool allows(F) {
  return std::is_invocable_v<F, T>;
}

#define CALL(expression) [](auto&& owner) -> decltype((void)(std::forward<decltype(owner)>(owner) expression)) {}
// An owner that has a name may be read, a temporary one may not.
#define NEEDS_A_NAME(type, expression)                                                                  \
  static_assert(allows<type&>(CALL(expression)) && allows<const type&>(CALL(expression)), #expression); \
  static_assert(!allows<type>(CALL(expression)) && !allows<const type>(CALL(expression)), #expression)

NEEDS_A_NAME(Prediction, [0]);
NEEDS_A_NAME(Prediction, .handle());
NEEDS_A_NAME(Session, .describe());
NEEDS_A_NAME(Session, .property("key"));
NEEDS_A_NAME(Session, .input(0));
NEEDS_A_NAME(Session, .output(0));
NEEDS_A_NAME(Session, .preprocessing());
NEEDS_A_NAME(Session, .handle());
NEEDS_A_NAME(Result<Prediction>, .operator->());
NEEDS_A_NAME(Result<std::vector<float>>, .operator->());

// What is copied out may come from a temporary.
static_assert(allows<Session>(CALL(.class_name(0))));
static_assert(allows<Session>(CALL(.prepare(capsedge_image{}))));
static_assert(allows<Prediction>(CALL(.size())));

// The value or error of a temporary result is an object, not a reference into the result.
static_assert(std::is_same_v<decltype(*std::declval<Result<Prediction>>()), Prediction>);
static_assert(std::is_same_v<decltype(std::declval<Result<Prediction>>().error()), Error>);
static_assert(std::is_same_v<decltype(std::declval<Result<void>>().error()), Error>);
static_assert(std::is_same_v<decltype(PredictOptions().top(3).at_least(0.5).dark_ink()), PredictOptions>);

// A view may be made of a vector with a name only.
static_assert(std::is_constructible_v<View<float>, const std::vector<float>&>);
static_assert(!std::is_constructible_v<View<float>, std::vector<float>>);

int main() { return 0; }
