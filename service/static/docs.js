// Shows /openapi.json with Swagger UI. A change by a signed-in browser carries the value that proves it is no foreign page.
"use strict";
let csrf = null;
fetch("/api/v1/session").then((answer) => answer.json()).then((session) => { csrf = session.csrf; });
window.ui = SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  validatorUrl: null,
  requestInterceptor: (request) => {
    if (csrf) request.headers["X-CSRF-Token"] = csrf;
    return request;
  },
});
