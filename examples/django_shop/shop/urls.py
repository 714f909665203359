"""The pages of the shop."""

from __future__ import annotations

from django.urls import path

from . import views

urlpatterns = [
    path("orders", views.place),
    path("orders/<str:order_id>", views.show),
    path("hooks/stripe", views.stripe),
]
