// The operators of chains, one line each: the name in ONNX, the estimated nanoseconds for an element, and the value.
//
// Whoever includes this file defines some of ONE(name, cost, value) of x, TWO of a and b, THREE of a, b and c, and
// ROW(name, cost, start, value), which adds b to the result a of the row so far. T is the type of numbers; a condition is
// 0 or 1. compiler/rationale/artifact/finishing/fused.py lists the same names, and a test compares the two.
//
// Zeros and NaN come out as ONNX Runtime's operators have them: of 0 and -0 Max and Min return the second, either NaN makes
// them NaN, and a bound of Clip that is NaN does not bound. ReduceMax alone differs: it is NaN if one number is.
#ifndef ONE
#define ONE(name, cost, value)
#endif
#ifndef TWO
#define TWO(name, cost, value)
#endif
#ifndef THREE
#define THREE(name, cost, value)
#endif
#ifndef ROW
#define ROW(name, cost, start, value)
#endif

ONE(Abs, .1, std::fabs(x))
ONE(Cast, .1, x)  // of a condition
ONE(Erf, 1.2, error_function(x))
ONE(Exp, .6, exponential(x))
ONE(Identity, .1, x)
ONE(Log, .8, logarithm(x))
ONE(Neg, .1, -x)
ONE(Not, .1, x == T(0) ? T(1) : T(0))
ONE(Reciprocal, .3, T(1) / x)
ONE(Relu, .1, largest(T(0), x))
ONE(Sigmoid, .9, T(1) / (T(1) + exponential(-x)))
ONE(Sign, .1, x > T(0) ? T(1) : x < T(0) ? T(-1) : x + T(0))
ONE(Sqrt, .3, std::sqrt(x))
ONE(Tanh, .8, hyperbolic_tangent(x))

TWO(Add, .1, a + b)
TWO(And, .1, a * b)
TWO(Div, .3, a / b)
TWO(Equal, .1, a == b ? T(1) : T(0))
TWO(Greater, .1, a > b ? T(1) : T(0))
TWO(GreaterOrEqual, .1, a >= b ? T(1) : T(0))
TWO(Less, .1, a < b ? T(1) : T(0))
TWO(LessOrEqual, .1, a <= b ? T(1) : T(0))
TWO(Max, .1, largest(a, b))
TWO(Min, .1, least(a, b))
TWO(Mul, .1, a * b)
TWO(Or, .1, a > b ? a : b)
TWO(Sub, .1, a - b)

THREE(Clip, .2, c < (a < b ? b : a) ? c : a < b ? b : a)
THREE(Where, .2, a != T(0) ? b : c)

ROW(ReduceMax, .2, -std::numeric_limits<T>::infinity(), largest(a, b))
ROW(ReduceMean, .2, T(0), a + b)  // divided by the row's length afterwards
ROW(ReduceSum, .2, T(0), a + b)

#undef ONE
#undef TWO
#undef THREE
#undef ROW
